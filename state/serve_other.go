//go:build !linux

package state

import "syscall"

// mortal shields a process from the terminal's signals.
func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
