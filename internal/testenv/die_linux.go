package testenv

import "syscall"

// dieWithParent makes a process end with the test binary, however that ends.
func dieWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
