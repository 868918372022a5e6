//go:build !linux

package testenv

import "syscall"

// dieWithParent has nothing to set: a test binary that is killed leaves its
// servers behind.
func dieWithParent(*syscall.SysProcAttr) {}
