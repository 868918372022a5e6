package simprogram_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/numaform/numaform/internal/simprogram"
)

// TestInterrupt checks that no simulator is in the process group that a terminal
// interrupts: the parent still needs the simulator to clean up.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	program, err := simprogram.Start("statesim", nil, func(func(simprogram.Hook) string) (any, error) { return struct{}{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := program.Close(); err != nil {
			t.Error(err)
		}
	}()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	children := 0
	for _, name := range stats {
		text, _ := os.ReadFile(name) // the process may have ended
		_, fields, _ := strings.Cut(string(text), ") ")
		var state string
		var parent, group int
		if _, err := fmt.Sscan(fields, &state, &parent, &group); err != nil || parent != os.Getpid() {
			continue
		}
		children++
		if group == syscall.Getpgrp() {
			t.Errorf("%s is in the process group of this test", name)
		}
	}
	if children != 1 {
		t.Errorf("%d children, want 1", children)
	}
}
