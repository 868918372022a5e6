//go:build !linux

package confine

import "errors"

// Version returns 0: only Linux has Landlock.
func Version() int { return 0 }

// keepFiles does nothing: children do not inherit files that Go opens.
func keepFiles() {}

// become returns an error. It is never called on this system.
func (r Rules) become(_, _ []string) error {
	return errors.New("confining " + r.Program + ": supported only on Linux")
}
