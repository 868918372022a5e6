package testenv

import "syscall"

// dieWithParent makes a process end with the test binary, even if the binary is killed.
func dieWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
