//go:build !unix

package simprogram

import "os/exec"

// lock does nothing: concurrent builds only cost time.
func lock(string) (unlock func(), err error) { return func() {}, nil }

// detach does nothing: an interrupt from the terminal may end programs too early.
func detach(*exec.Cmd) {}
