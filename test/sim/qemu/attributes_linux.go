package qemu

import "syscall"

// attributes returns attributes that make QEMU end with this process, and protect it from a
// terminal's interrupt.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
