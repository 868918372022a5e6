package state

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// enginesDie is true where the kernel kills an engine when its parent dies.
const enginesDie = true

// strangers returns the processes on this host that an engine of a numaform is or has
// started, other than this process and those below it, sorted, if their environment
// names the cluster. Processes of other users cannot be read. It reports false where
// nobody can tell.
func strangers(cluster string, entries []string) (pids []int, known bool) {
	found := marking(func(environ [][]byte) bool {
		has := func(prefix string) bool {
			return slices.ContainsFunc(environ, func(e []byte) bool { return bytes.HasPrefix(e, []byte(prefix)) })
		}
		// An older numaform did not name the cluster, and gave every process these entries.
		older := !has(clusterVariable+"=") && !slices.ContainsFunc(entries, func(entry string) bool { return !has(entry) })
		return has(runVariable+"=") && (older || has(clusterVariable+"="+cluster))
	})
	return slices.DeleteFunc(found, func(pid int) bool { return descends(pid, os.Getpid()) }), true
}

// descends reports whether a process is another, or was started below it.
func descends(pid, from int) bool {
	for pid > 1 && pid != from {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return false
		}
		// pid (name) state parent …, where name may hold anything
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if pid, err = strconv.Atoi(string(fields[1])); err != nil {
			return false
		}
	}
	return pid == from
}

// marked returns the processes that carry a mark in their environment, sorted.
// Processes of other users cannot be read and are not ours.
func marked(mark string) []int {
	want := []byte(runVariable + "=" + mark)
	return marking(func(environ [][]byte) bool {
		return slices.ContainsFunc(environ, func(e []byte) bool { return bytes.Equal(e, want) })
	})
}

// doneBy tells how much a process has read and written.
func doneBy(pid int) string {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
	if err != nil {
		return ""
	}
	return string(content)
}

// marking returns the processes, but for this one, with such an environment, sorted.
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
