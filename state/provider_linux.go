package state

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// mortal returns the attributes of a process that dies with this one and does not get the
// terminal's signals.
func mortal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// enginesDie is true because the kernel kills an engine when its parent dies.
const enginesDie = true

// strangers returns the processes on this host that belong to another numaform's engines,
// sorted, if their environment names the cluster. It excludes this process and its
// descendants, and cannot read other users' processes. On Linux, known is always true.
func strangers(cluster string, entries []string) (pids []int, known bool) {
	found := marking(func(environ [][]byte) bool {
		has := func(prefix string) bool {
			return slices.ContainsFunc(environ, func(e []byte) bool { return bytes.HasPrefix(e, []byte(prefix)) })
		}
		// An older numaform did not set the cluster, and set these entries for every
		// process.
		older := !has(clusterVariable+"=") && !slices.ContainsFunc(entries, func(entry string) bool { return !has(entry) })
		return has(runVariable+"=") && (older || has(clusterVariable+"="+cluster))
	})
	return slices.DeleteFunc(found, func(pid int) bool { return descends(pid, os.Getpid()) }), true
}

// enginesIn returns the engines and providers that other numaform processes run in
// directories of which in is true.
func enginesIn(in func(dir string) bool) (pids []int, known bool) {
	found := marking(func(environ [][]byte) bool {
		return slices.ContainsFunc(environ, func(e []byte) bool { return bytes.HasPrefix(e, []byte(runVariable+"=")) })
	})
	return slices.DeleteFunc(found, func(pid int) bool {
		dir, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
		return err != nil || !in(dir) || descends(pid, os.Getpid())
	}), true
}

// descends reports whether pid equals from or is a descendant of it.
func descends(pid, from int) bool {
	for pid > 1 && pid != from {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return false
		}
		// The format is "pid (name) state parent …", and name may contain anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if pid, err = strconv.Atoi(string(fields[1])); err != nil {
			return false
		}
	}
	return pid == from
}

// marked returns the processes with a mark in their environment, sorted. It cannot read
// other users' processes, which are never ours.
func marked(mark string) []int {
	want := []byte(runVariable + "=" + mark)
	return marking(func(environ [][]byte) bool {
		return slices.ContainsFunc(environ, func(e []byte) bool { return bytes.Equal(e, want) })
	})
}

// doneBy returns a text that changes when a process reads or writes, or "" if the process
// cannot be read.
func doneBy(pid int) string {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
	if err != nil {
		return ""
	}
	return string(content)
}

// marking returns the processes, except this one, whose environment satisfies the predicate
// such. They are sorted.
func marking(such func(environ [][]byte) bool) []int {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil
	}
	var pids []int
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		carries := such(bytes.Split(environ, []byte{0}))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if carries && err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
