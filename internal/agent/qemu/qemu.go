// Package qemu finds the VMs that run on this Proxmox host, reads their Proxmox
// configuration, and moves their threads between CPUs. It does not communicate with VMs:
// it reads QEMU's state from /proc, so that a hung or hostile VM cannot block or mislead
// the caller. It makes no decisions: start at Reader.Running.
package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Reader reads the guests and processes of a host.
type Reader struct {
	// Root is the root directory of the file system, "/" except in tests.
	Root string
}

// Run identifies a running VM. It changes when QEMU starts again.
type Run struct {
	VMID int `json:"vmid"`
	PID  int `json:"pid"`
	// Start is the start time of the process, in hundredths of a second since boot.
	Start uint64 `json:"start"`
}

// Guest is a running VM or container.
type Guest struct {
	Run
	Config Config
	// Err is the error that prevented reading Config, or nil.
	Err error
}

// maxFile is the maximum number of bytes read from a file, which exceeds the limits of
// Proxmox.
const maxFile = 1 << 20

// Running returns the running VMs, sorted by VMID. It returns VMs even if their
// configuration cannot be read: see Guest.Err.
func (r Reader) Running() ([]Guest, error) {
	entries, err := os.ReadDir(r.path("run/qemu-server"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing VMs: %w", err)
	}
	var guests []Guest
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), ".pid")
		vmid, err := parseVMID(name)
		if !ok || err != nil {
			continue
		}
		run, ok := r.run(vmid)
		if !ok {
			continue
		}
		guest := Guest{Run: run}
		guest.Config, guest.Err = r.config("qemu-server", vmid)
		guests = append(guests, guest)
	}
	slices.SortFunc(guests, func(a, b Guest) int { return a.VMID - b.VMID })
	return guests, nil
}

// Containers returns the running containers, sorted by VMID, according to the control
// groups below cgroup.
func (r Reader) Containers(cgroup string) ([]Guest, error) {
	entries, err := os.ReadDir(filepath.Join(cgroup, "lxc"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	var guests []Guest
	for _, entry := range entries {
		vmid, err := parseVMID(entry.Name())
		if err != nil || !entry.IsDir() {
			continue
		}
		guest := Guest{Run: Run{VMID: vmid}}
		guest.Config, guest.Err = r.config("lxc", vmid)
		guests = append(guests, guest)
	}
	slices.SortFunc(guests, func(a, b Guest) int { return a.VMID - b.VMID })
	return guests, nil
}

// run finds the process of a VM. A pid file left by a dead process is not a VM.
func (r Reader) run(vmid int) (Run, bool) {
	name := fmt.Sprintf("run/qemu-server/%d.pid", vmid)
	data, err := r.read(name)
	if err != nil {
		return Run{}, false
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil || pid <= 1 {
		return Run{}, false
	}
	start, err := r.started(pid)
	if err != nil {
		return Run{}, false
	}

	// Every VM started by Proxmox has its pid file among its arguments. An unrelated process
	// that reuses the process id does not.
	data, err = r.read(fmt.Sprintf("proc/%d/cmdline", pid))
	if err != nil {
		return Run{}, false
	}
	args := strings.Split(string(data), "\x00")
	at := slices.Index(args, "-pidfile")
	if at < 0 || at+1 >= len(args) || !strings.HasSuffix(args[at+1], "/"+name) {
		return Run{}, false
	}
	return Run{VMID: vmid, PID: pid, Start: start}, true
}

// Alive reports whether the process of a Run is still running.
func (r Reader) Alive(run Run) bool {
	start, err := r.started(run.PID)
	return err == nil && start == run.Start
}

// started reads the start time of a process. A zombie counts as ended.
func (r Reader) started(pid int) (uint64, error) {
	data, err := r.read(fmt.Sprintf("proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name is in parentheses and may contain any bytes, including parentheses.
	const state, start = 0, 19
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(fields[start], 10, 64)
}

// Self returns this process as a Run without a VMID.
func (r Reader) Self() (Run, error) {
	start, err := r.started(os.Getpid())
	return Run{PID: os.Getpid(), Start: start}, err
}

// Age returns the seconds since a VM started, or 0 if the host's uptime cannot be read.
// Changes of the wall clock do not affect it.
func (r Reader) Age(run Run) float64 {
	up, err := r.Uptime()
	if err != nil {
		return 0
	}
	return up - float64(run.Start)/100
}

// Uptime returns the seconds since the host started.
func (r Reader) Uptime() (float64, error) {
	data, err := r.read("proc/uptime")
	if err != nil {
		return 0, err
	}
	text, _, _ := strings.Cut(string(data), " ")
	return strconv.ParseFloat(text, 64)
}

// Changed returns when a VM last started or ended, by the host's clock: when a pid file was
// written or removed. It is far cheaper than Running. It returns the zero time if the
// directory of pid files does not exist.
func (r Reader) Changed() time.Time {
	dir := r.path("run/qemu-server")
	info, err := os.Stat(dir)
	if err != nil {
		return time.Time{}
	}
	last := info.ModTime()
	// A crash leaves the file, and the next start writes to it.
	files, _ := filepath.Glob(filepath.Join(dir, "*.pid"))
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

// parseVMID reads a number as Proxmox writes it.
func parseVMID(text string) (int, error) {
	vmid, err := strconv.Atoi(text)
	if err != nil || vmid < 100 || vmid > 999999999 || strconv.Itoa(vmid) != text {
		return 0, fmt.Errorf("%q is not a VMID", text)
	}
	return vmid, nil
}

func (r Reader) path(name string) string { return filepath.Join(r.Root, name) }

// read reads a file of limited size.
func (r Reader) read(name string) ([]byte, error) {
	file, err := os.Open(r.path(name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", r.path(name), maxFile)
	}
	return data, err
}
