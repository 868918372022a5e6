//go:build !linux

package state

import "syscall"

// mortal returns the attributes of a process that does not get the terminal's signals.
func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// enginesDie is false because an engine may outlive its parent.
const enginesDie = false

// marked returns nothing: this system does not expose other processes' environments.
func marked(string) []int { return nil }

// strangers returns false: other processes' environments are unknown on this system.
func strangers(string, []string) (pids []int, known bool) { return nil, false }

// enginesIn reports that the processes are unknown on this system.
func enginesIn(func(dir string) bool) (pids []int, known bool) { return nil, false }

// doneBy returns "": the activity of other processes is unknown on this system.
func doneBy(int) string { return "" }
