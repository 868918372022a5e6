package state

import "time"

// What tests look into because no engine can be made to show it.
var (
	Environment = environment
	ParseLock   = parseLock
	ParseState  = parseState
)

// Mark returns what marks the processes of a workspace.
func (w *Workspace) Mark() string { return runVariable + "=" + w.mark() }

// Hide takes the secrets of env out of s.
func Hide(env map[string]string, s string) string { return newRedactor(env).hide(s) }

// Held reports whether a lock is that of a run on a host between two moments.
func Held(host string, began, until time.Time, lock *LockedError, here string) bool {
	return (&run{Host: host, Began: began, Until: until}).held(lock, here)
}
