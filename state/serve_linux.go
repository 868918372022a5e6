package state

import "syscall"

// mortal makes a process die with this one and shields it from the terminal's signals.
func mortal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
