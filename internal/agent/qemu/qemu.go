// Package qemu finds the VMs that run on this Proxmox host, reads what Proxmox says
// of them, and moves their threads between CPUs. It talks to no VM: what QEMU is and
// does is read in /proc, so that a hung or hostile one cannot hold up or mislead who
// asks. It decides nothing: start at Reader.Running.
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

// Reader reads a host.
type Reader struct {
	// Root is the directory of the file system, "/" but in tests.
	Root string
}

// Run identifies a running VM: it is another one when QEMU starts again.
type Run struct {
	VMID int `json:"vmid"`
	PID  int `json:"pid"`
	// Start is when the process started, in hundredths of a second after the host's.
	Start uint64 `json:"start"`
}

// Guest is a VM that runs, or a container.
type Guest struct {
	Run
	Config Config
	// Err says why Config could not be read, or is nil.
	Err error
}

// maxFile is how much of a file is read: more than Proxmox lets a file have.
const maxFile = 1 << 20

// Running returns the VMs that run, by VMID.
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

// Containers returns the containers that run, by VMID, where the control groups that
// begin at cgroup show them.
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

// run finds the process of a VM. A file that a dead process left is no VM.
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
	if err != nil || !r.wrote(pid, "/"+name) {
		return Run{}, false
	}
	return Run{VMID: vmid, PID: pid, Start: start}, true
}

// wrote reports whether the process was told to write that file: Proxmox starts every
// VM so, and a number that another process has by now does not pass for it.
func (r Reader) wrote(pid int, name string) bool {
	data, err := r.read(fmt.Sprintf("proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	args := strings.Split(string(data), "\x00")
	at := slices.Index(args, "-pidfile")
	return at >= 0 && at+1 < len(args) && strings.HasSuffix(args[at+1], name)
}

// Alive reports whether the VM still runs.
func (r Reader) Alive(run Run) bool {
	start, err := r.started(run.PID)
	return err == nil && start == run.Start
}

// started reads when a process started. A zombie is no process any more.
func (r Reader) started(pid int) (uint64, error) {
	data, err := r.read(fmt.Sprintf("proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name is in brackets and may have any bytes, brackets too.
	const state, start = 0, 19
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return 0, fmt.Errorf("process %d is gone", pid)
	}
	return strconv.ParseUint(fields[start], 10, 64)
}

// Self returns this process as a Run without a VMID.
func (r Reader) Self() (Run, error) {
	start, err := r.started(os.Getpid())
	return Run{PID: os.Getpid(), Start: start}, err
}

// Age returns how many seconds ago a VM started. No change of the clock changes it.
func (r Reader) Age(run Run) float64 {
	up, err := r.Uptime()
	if err != nil {
		return 0
	}
	return up - float64(run.Start)/100
}

// Uptime returns how many seconds ago the host started.
func (r Reader) Uptime() (float64, error) {
	data, err := r.read("proc/uptime")
	if err != nil {
		return 0, err
	}
	text, _, _ := strings.Cut(string(data), " ")
	return strconv.ParseFloat(text, 64)
}

// Changed returns when a VM last started or ended, by the clock of the host: when a
// file with its number was written or removed. It costs far less than Running. It is the
// zero time where there is no directory for those.
func (r Reader) Changed() time.Time {
	dir := r.path("run/qemu-server")
	info, err := os.Stat(dir)
	if err != nil {
		return time.Time{}
	}
	last := info.ModTime()
	// A crash leaves the file, and the next start writes into it.
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
		return 0, fmt.Errorf("%q is no VMID", text)
	}
	return vmid, nil
}

func (r Reader) path(name string) string { return filepath.Join(r.Root, name) }

// read reads a file of bounded size.
func (r Reader) read(name string) ([]byte, error) {
	file, err := os.Open(r.path(name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("reading %s: it has more than %d bytes", name, maxFile)
	}
	return data, err
}
