package store

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// pipeSize is the largest size of a pipe, in bytes, that the kernel allows every user by
// default (pipe(7), /proc/sys/fs/pipe-max-size).
const pipeSize = 1 << 20

// enlarge increases the size of a pipe from 64 KiB, so that both ends can work at the same
// time. The first fetch takes a quarter less time. Errors are ignored, because the pipe also
// works with the default size.
func enlarge(pipe io.Writer) {
	file, ok := pipe.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) // fails when the user has too many pipes
		})
	}
}
