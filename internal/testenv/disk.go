package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// LoseDisk simulates the loss of a machine with a directory: it kills all processes with a
// working directory below it, such as engines, and deletes the directory. It finds processes
// only on Linux.
func LoseDisk(ctx context.Context, dir string) error {
	var left []int
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		left = below(dir)
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("killing the processes in %s: %w: processes %v still run", dir, err, left)
	}
	return os.RemoveAll(dir)
}

// below returns the IDs of the processes with a working directory below dir.
func below(dir string) (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is valid
	for _, link := range links {
		at, err := os.Readlink(link)
		var pid int
		if _, scanned := fmt.Sscanf(link, "/proc/%d/cwd", &pid); err == nil && scanned == nil && strings.HasPrefix(at, dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}
