//go:build !linux

package qemu

import "syscall"

// attributes returns nil, the defaults: a killed simulator leaves QEMU running.
func attributes() *syscall.SysProcAttr { return nil }
