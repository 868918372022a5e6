// Package qemu runs VMs as QEMU processes, from their configuration in Proxmox VE. It uses
// KVM if KVM works, and otherwise emulates the processor. Start at New.
package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const program = "qemu-system-x86_64"

// Config configures a Hypervisor.
type Config struct {
	// Image is the disk image of all templates, in qcow2.
	Image string
	// Dir is the directory for disks, sockets and serial logs, with a subdirectory for each
	// VM. Its path must be short, because socket paths are limited in length.
	Dir string
}

// Hypervisor runs VMs. Create one with New.
type Hypervisor struct {
	cfg         Config
	accelerator string
	hostNodes   []int

	// mu guards the fields below.
	mu      sync.Mutex
	running map[int]*process
	started int
	// synced is the last ID with which a guest agent was synchronized.
	synced int
	// segments are the segments of the bridges other than the uplink, by path.
	segments map[string]*segment
}

// process is a running QEMU.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// New checks that QEMU and the image exist, and tests whether KVM works.
func New(ctx context.Context, cfg Config) (*Hypervisor, error) {
	for _, name := range []string{program, "qemu-img"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("running guests with QEMU: no %s: install QEMU (Debian: apt-get install qemu-system-x86 qemu-utils)", name)
		}
	}
	if _, err := os.Stat(cfg.Image); err != nil {
		return nil, fmt.Errorf("running guests with QEMU: opening the guest image: %w: build it with make guest-image", err)
	}
	h := &Hypervisor{cfg: cfg, accelerator: accelerator(ctx, cfg.Image), running: map[int]*process{}, segments: map[string]*segment{}}
	nodes, err := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, node := range nodes {
		if id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(node), "node")); err == nil {
			h.hostNodes = append(h.hostNodes, id)
		}
	}
	return h, nil
}

// Accelerator returns kvm, or tcg if KVM does not work on this machine.
func (h *Hypervisor) Accelerator() string { return h.accelerator }

// kvmLimit is the time in which a kernel starts if KVM works.
const kvmLimit = 12 * time.Second

// accelerator returns kvm if a kernel starts with it within kvmLimit. On some virtual
// machines /dev/kvm opens and the BIOS runs, but the guest hangs in the boot loader.
func accelerator(ctx context.Context, image string) string {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return "tcg"
	}
	ctx, cancel := context.WithTimeout(ctx, kvmLimit)
	defer cancel()
	cmd := exec.CommandContext( //nolint:gosec // the image is the caller's choice
		ctx, program, "-machine", "pc,accel=kvm", "-cpu", "host", "-m", "512", "-nodefaults", "-display", "none", "-serial", "stdio",
		"-snapshot", "-drive", "if=virtio,format=qcow2,file="+image,
	)
	cmd.SysProcAttr = attributes()
	console, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return "tcg"
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(console)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "Linux version") {
			return "kvm"
		}
	}
	return "tcg"
}

// Start starts a VM. It calls exited when the VM's process ends.
func (h *Hypervisor) Start(vm VM, exited func()) (pid int, err error) {
	fail := func(err error) (int, error) { return 0, fmt.Errorf("starting VM %d with QEMU: %w", vm.VMID, err) }
	h.mu.Lock()
	running, address := h.running[vm.VMID], 15+h.started%200
	h.started++
	h.mu.Unlock()
	if running != nil {
		return fail(errors.New("it is already running"))
	}
	here := here{dir: h.dir(vm.VMID), accelerator: h.accelerator, hostNodes: h.hostNodes, address: address}
	if err := h.prepare(vm, here.dir); err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(filepath.Dir(pidFile(here.dir, vm.VMID)), 0o700); err != nil {
		return fail(err)
	}
	args, err := arguments(vm, here)
	if err != nil {
		return fail(err)
	}
	output := &bytes.Buffer{}
	cmd := exec.CommandContext(context.Background(), program, args...) //nolint:gosec // a program of this machine
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = output, output, attributes()
	if err := os.WriteFile(filepath.Join(here.dir, "command"), []byte(cmd.String()+"\n"), 0o600); err != nil {
		return fail(err)
	}
	disconnect, err := h.connect(vm, here.dir)
	if err != nil {
		return fail(err)
	}
	if err := cmd.Start(); err != nil {
		disconnect()
		return fail(err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	h.mu.Lock()
	h.running[vm.VMID] = p
	h.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		disconnect()
		h.mu.Lock()
		delete(h.running, vm.VMID)
		h.mu.Unlock()
		close(p.done)
		exited()
	}()

	// QEMU's monitor responds once QEMU has accepted its arguments.
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		err := h.monitor(ctx, vm.VMID, "query-status")
		if err == nil {
			return cmd.Process.Pid, nil
		}
		select {
		case <-p.done:
			return fail(fmt.Errorf("QEMU exited: %s", bytes.TrimSpace(output.Bytes())))
		case <-ctx.Done():
			h.Stop(vm.VMID)
			return fail(fmt.Errorf("QEMU's monitor did not respond within %s: %w", startLimit, err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// startLimit is the time limit for QEMU to accept its arguments.
const startLimit = 30 * time.Second

func (h *Hypervisor) dir(vmid int) string { return filepath.Join(h.cfg.Dir, strconv.Itoa(vmid)) }

// prepare writes CD-ROMs, and creates disks that do not exist yet.
func (h *Hypervisor) prepare(vm VM, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, d := range vm.Drives {
		if d.CD {
			if err := os.WriteFile(filepath.Join(dir, name+".iso"), d.Content, 0o600); err != nil {
				return err
			}
			continue
		}
		path := filepath.Join(dir, diskFile(d.Volume))
		if _, err := os.Stat(path); err == nil {
			continue
		}
		size := strconv.FormatInt(d.Size, 10)
		commands := [][]string{{"create", "-q", "-f", "qcow2", path, size}}
		switch {
		case d.Image && d.Linked:
			commands = [][]string{{"create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", h.cfg.Image, path, size}}
		case d.Image:
			commands = [][]string{{"convert", "-O", "qcow2", h.cfg.Image, path}, {"resize", "-q", path, size}}
		}
		for _, args := range commands {
			cmd := exec.CommandContext(context.Background(), "qemu-img", args...) //nolint:gosec // the disk's name and size are checked
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("qemu-img %s: %w: %s", args[0], err, bytes.TrimSpace(out))
			}
		}
	}
	return nil
}

// Shutdown requests the guest's shutdown, and waits until its process ends. If the VM has a
// guest agent that responds, the agent shuts the guest down, and otherwise the ACPI power
// button (qemu-server 9.2.6, src/PVE/QemuServer.pm:6270-6274).
func (h *Hypervisor) Shutdown(ctx context.Context, vmid int, agent bool) error {
	p := h.process(vmid)
	if p == nil {
		return nil
	}
	if agent {
		_, err := h.Agent(ctx, vmid, "guest-ping", nil)
		agent = err == nil
	}
	var err error
	if agent {
		_, err = h.Agent(ctx, vmid, "guest-shutdown", nil)
	} else {
		err = h.monitor(ctx, vmid, "system_powerdown")
	}
	if err != nil {
		return fmt.Errorf("shutting down VM %d: %w", vmid, err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("shutting down VM %d: %w", vmid, ctx.Err())
	}
}

// Stop ends a VM's process and waits for it.
func (h *Hypervisor) Stop(vmid int) {
	if p := h.process(vmid); p != nil {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Remove stops a VM and deletes its files.
func (h *Hypervisor) Remove(vmid int) error {
	h.Stop(vmid)
	return os.RemoveAll(h.dir(vmid))
}

// Close stops all VMs and the segments.
func (h *Hypervisor) Close() {
	h.mu.Lock()
	var ids []int
	for id := range h.running {
		ids = append(ids, id)
	}
	h.mu.Unlock()
	for _, id := range ids {
		h.Stop(id)
	}
	h.mu.Lock()
	segments := h.segments
	h.segments = map[string]*segment{}
	h.mu.Unlock()
	for _, segment := range segments {
		segment.close()
	}
}

func (h *Hypervisor) process(vmid int) *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running[vmid]
}

// monitor runs a command in QEMU's monitor.
func (h *Hypervisor) monitor(ctx context.Context, vmid int, command string) error {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	conn, err := dialer.DialContext(ctx, "unix", filepath.Join(h.dir(vmid), "qmp"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	answers := bufio.NewScanner(conn)
	for _, execute := range []string{"qmp_capabilities", command} {
		if _, err := fmt.Fprintf(conn, "{\"execute\":%q}\n", execute); err != nil {
			return err
		}
		for {
			if !answers.Scan() {
				return errors.Join(io.ErrUnexpectedEOF, answers.Err())
			}
			var answer struct {
				Return json.RawMessage
				Error  *struct{ Desc string }
			}
			if err := json.Unmarshal(answers.Bytes(), &answer); err != nil {
				return err
			}
			if answer.Error != nil {
				return fmt.Errorf("%s: %s", execute, answer.Error.Desc)
			}
			if answer.Return != nil { // other messages are the greeting and events
				break
			}
		}
	}
	return nil
}
