//go:build !linux

package state

import "syscall"

// mortal keeps signals of the terminal from a process.
func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
