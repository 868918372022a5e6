//go:build !unix

package simprogram

import "os/exec"

// lock does nothing: without a lock, concurrent builds only repeat work.
func lock(string) (unlock func(), err error) { return func() {}, nil }

// detach does nothing: an interrupt from the terminal can end simulators too early.
func detach(*exec.Cmd) {}
