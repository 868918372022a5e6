package state

import "syscall"

// mortal makes a process die with this one, and keeps signals of the terminal from it.
func mortal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
