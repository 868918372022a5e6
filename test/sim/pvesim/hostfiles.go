package pvesim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// firstPID is above the largest process ID of Linux (PID_MAX_LIMIT, include/linux/threads.h
// of 6.14), so that a real process can be added to an exported /proc.
const firstPID = 1 << 22

// uptime is the content of /proc/uptime of an exported host, in seconds. It is constant,
// and so large that programs never wait for more threads of a process that has just
// started: all threads of a simulated guest exist from the start.
const uptime = "100000000.00 100000000.00\n"

// otherThreads is the number of QEMU's threads besides the vCPUs; the first is the main
// thread.
const otherThreads = 2

// hostFiles is a host's file system in a directory.
type hostFiles struct {
	dir    string
	boot   time.Time          // processes' start times are relative to this time
	guests map[int]guestFiles // by VMID
	err    error              // the first error, returned when the export ends
}

// guestFiles describes the files that were written for a guest.
type guestFiles struct {
	conf, text string // name and content of the configuration file
	kind       GuestKind
	pid, vcpus int // 0 if the guest is stopped
}

// ExportHost writes into a directory the parts of a host's file system that a program needs
// to manage guests on the host: hardware, resource mappings, configuration files, processes
// with their threads, and control groups. The directory follows all changes of guests.
//
// The program sets the CPUs of a thread in Cpus_allowed_list of /proc/TID/status, and the
// CPUs of a control group in its cpuset.cpus; Threads reads both. An empty dir ends the
// export and returns the error of its first failed write or read.
func (s *Server) ExportHost(name, dir string) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	h := s.state.hosts[name]
	if h == nil {
		return fmt.Errorf("exporting host %q: no such host", name)
	}
	if dir == "" {
		var err error
		if h.files != nil && h.files.err != nil {
			err = fmt.Errorf("exporting host %s: %w", name, h.files.err)
		}
		h.files = nil
		return err
	}
	h.files = &hostFiles{dir: dir, boot: s.state.started, guests: map[int]guestFiles{}}
	h.files.host(h)
	for id := range h.guests {
		h.show(id)
	}
	return h.files.err
}

// show updates the files of a guest if the host is exported.
func (h *host) show(id int) {
	x, g := h.files, h.guests[id]
	if x == nil {
		return
	}
	was, now := x.guests[id], guestFiles{}
	if g != nil {
		now.conf, now.text, now.kind = "etc/pve/"+strings.TrimPrefix(confPath(h.name, g.kind, id), "nodes/"+h.name+"/"), g.raw(), g.kind
		if g.running {
			now.pid, now.vcpus = g.pid, was.vcpus
			if was.pid != g.pid {
				now.vcpus = vcpus(g.live)
			}
		}
	}
	if was.conf != now.conf && was.conf != "" {
		x.remove(was.conf)
	}
	if was.text != now.text && now.conf != "" {
		x.write(now.conf, now.text)
	}
	if was.pid != now.pid {
		if was.pid != 0 {
			x.end(id, was)
		}
		if now.pid != 0 {
			x.begin(id, now, g)
		}
	}
	x.guests[id] = now
	if g == nil {
		delete(x.guests, id)
	}
}

// begin writes the files of a started process. It writes the PID file last, as QEMU does.
func (x *hostFiles) begin(id int, f guestFiles, g *guest) {
	if f.kind == GuestContainer {
		x.write(fmt.Sprintf("sys/fs/cgroup/lxc/%d/cgroup.procs", id), strconv.Itoa(f.pid)+"\n")
		return
	}
	group := scope(id)
	x.cpuset(group, g.host.machine.OnlineCPUs())
	// The 22nd field of stat is the start time of the process in hundredths of a second:
	// see proc_pid_stat(5).
	x.write(fmt.Sprintf("proc/%d/stat", f.pid), fmt.Sprintf("%d (kvm) S 1%s %d\n", f.pid, strings.Repeat(" 0", 17), max(0, g.started.Sub(x.boot).Milliseconds()/10)))
	// qemu-server 9.2.6, src/PVE/QemuServer.pm:3216 and 3237, src/PVE/QemuServer/Helpers.pm:133.
	pidFile := fmt.Sprintf("run/qemu-server/%d.pid", id)
	args := []string{"/usr/bin/kvm", "-id", strconv.Itoa(id), "-name", g.name() + ",debug-threads=on", "-pidfile", "/var/" + pidFile}
	x.write(fmt.Sprintf("proc/%d/cmdline", f.pid), strings.Join(args, "\x00")+"\x00")
	allowed := g.startCPUs().String()
	for i := range f.vcpus + otherThreads {
		name := []string{"kvm", "call_rcu"}[min(i, 1)]
		if i >= otherThreads {
			name = fmt.Sprintf("CPU %d/KVM", i-otherThreads)
		}
		x.write(fmt.Sprintf("proc/%d/task/%d/comm", f.pid, f.pid+i), name+"\n")
		x.write(fmt.Sprintf("proc/%d/cgroup", f.pid+i), "0::/"+group+"\n")
		x.write(statusFile(f.pid+i), allowedKey+"\t"+allowed+"\n")
	}
	x.write(pidFile, strconv.Itoa(f.pid)+"\n")
}

func (x *hostFiles) end(id int, f guestFiles) {
	if f.kind == GuestContainer {
		x.remove(fmt.Sprintf("sys/fs/cgroup/lxc/%d", id))
		return
	}
	x.remove(fmt.Sprintf("run/qemu-server/%d.pid", id))
	for i := range f.vcpus + otherThreads {
		x.remove(fmt.Sprintf("proc/%d", f.pid+i))
	}
	x.remove("sys/fs/cgroup/" + scope(id))
}

// scope returns the control group of a VM: qemu-server 9.2.6,
// src/PVE/QemuServer/CGroup.pm:14.
func scope(id int) string { return fmt.Sprintf("qemu.slice/%d.scope", id) }

// cpuset writes a control group. The kernel leaves cpuset.cpus empty until it is written;
// the simulator initially writes all online CPUs, and the value is always in effect.
func (x *hostFiles) cpuset(group string, online CPUSet) {
	x.write("sys/fs/cgroup/"+group+"/cpuset.cpus", online.String()+"\n")
	if err := os.Symlink("cpuset.cpus", filepath.Join(x.dir, "sys/fs/cgroup", group, "cpuset.cpus.effective")); err != nil && x.err == nil {
		x.err = err
	}
}

// allowedKey starts the line of proc_pid_status(5) with a thread's CPUs.
const allowedKey = "Cpus_allowed_list:"

// statusFile returns the path of a thread's status. The file exists for each thread,
// although /proc lists only processes: see proc(5).
func statusFile(tid int) string { return fmt.Sprintf("proc/%d/status", tid) }

// write replaces a file atomically.
func (x *hostFiles) write(name, text string) {
	path := filepath.Join(x.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		if err = os.WriteFile(path+".new", []byte(text), 0o644); err == nil {
			err = os.Rename(path+".new", path)
		}
	}
	if x.err == nil {
		x.err = err
	}
}

// remove removes a file or directory atomically: later writes below it fail.
func (x *hostFiles) remove(name string) {
	gone := filepath.Join(x.dir, "gone")
	err := os.Rename(filepath.Join(x.dir, name), gone)
	if err = errors.Join(err, os.RemoveAll(gone)); x.err == nil {
		x.err = err
	}
}

// Threads are the CPUs on which the threads of a running guest may run.
type Threads struct {
	// PID and Started identify the process: they change when the guest restarts.
	PID     int
	Started time.Time
	// VCPUs are the CPUs of vCPU 0, 1, 2, …
	VCPUs []CPUSet
	// Others are the CPUs of all other threads.
	Others CPUSet
}

// Pins returns the CPU of vCPU 0, 1, 2, … if each is pinned to exactly one, and nil
// otherwise.
func (t Threads) Pins() []int {
	var pins []int
	for _, cpus := range t.VCPUs {
		if cpus.Size() != 1 {
			return nil
		}
		pins = append(pins, cpus.List()...)
	}
	return pins
}

// Threads returns the threads of a guest, and reports false if the guest is not running.
func (s *Server) Threads(vmid int) (Threads, bool) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	g := s.state.guests[vmid]
	if g == nil || !g.running {
		return Threads{}, false
	}
	found := Threads{PID: g.pid, Started: g.started, Others: g.startCPUs()}
	if g.host.files != nil {
		g.host.files.read(g, &found)
	} else {
		found.VCPUs = slices.Repeat([]CPUSet{found.Others}, vcpus(g.live))
	}
	return found, true
}

// startCPUs returns the CPUs on which a process starts.
func (g *guest) startCPUs() CPUSet {
	online := g.host.machine.OnlineCPUs()
	if affinity, err := ParseCPUSet(g.live["affinity"]); err == nil && !affinity.IsEmpty() {
		return affinity.Intersection(online)
	}
	return online
}

// read reads the CPUs that other programs wrote for a guest's threads.
func (x *hostFiles) read(g *guest, t *Threads) {
	f, group := x.guests[g.id], scope(g.id)
	if f.kind == GuestContainer {
		group = "lxc" // the group's limits apply to all its containers
	}
	confined := x.list("sys/fs/cgroup/"+group+"/cpuset.cpus", "")
	if f.kind == GuestContainer {
		t.VCPUs, t.Others = slices.Repeat([]CPUSet{confined}, f.vcpus), confined
		return
	}
	t.Others = CPUSet{}
	for i := range f.vcpus + otherThreads {
		// Linux always restricts a thread to its control group.
		cpus := x.list(statusFile(f.pid+i), allowedKey).Intersection(confined)
		if cpus.IsEmpty() {
			cpus = confined
		}
		if i < otherThreads {
			t.Others = t.Others.Union(cpus)
		} else {
			t.VCPUs = append(t.VCPUs, cpus)
		}
	}
}

// list reads the CPUs that follow key in a file, up to the end of the line.
func (x *hostFiles) list(name, key string) CPUSet {
	data, err := os.ReadFile(filepath.Join(x.dir, name))
	var set CPUSet
	if err == nil {
		_, text, _ := strings.Cut(string(data), key)
		text, _, _ = strings.Cut(text, "\n")
		if set, err = ParseCPUSet(strings.TrimSpace(text)); err != nil {
			err = fmt.Errorf("reading %s: %w", name, err)
		}
	}
	if x.err == nil {
		x.err = err
	}
	return set
}
