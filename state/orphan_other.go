//go:build !linux

package state

// enginesDie is false where an engine may outlive its parent.
const enginesDie = false

// marked finds nothing: processes of others cannot be looked into here.
func marked(string) []int { return nil }

// strangers reports false: nobody can tell here.
func strangers(string, []string) (pids []int, known bool) { return nil, false }

// doneBy tells nothing.
func doneBy(int) string { return "" }
