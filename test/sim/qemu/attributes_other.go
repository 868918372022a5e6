//go:build !linux

package qemu

import "syscall"

// attributes are the defaults: a killed simulator leaves QEMU running.
func attributes() *syscall.SysProcAttr { return nil }
