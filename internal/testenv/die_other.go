//go:build !linux

package testenv

import "syscall"

// dieWithParent does nothing: a killed test binary leaves its servers running.
func dieWithParent(*syscall.SysProcAttr) {}
