//go:build !unix

package simprogram

import "os/exec"

// lock does nothing: builds at the same time only cost time.
func lock(string) (unlock func(), err error) { return func() {}, nil }

// detach does nothing: interrupting a terminal may end programs too early.
func detach(*exec.Cmd) {}
