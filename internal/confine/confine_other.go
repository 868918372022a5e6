//go:build !linux

package confine

import "errors"

// Version returns 0: only Linux has Landlock.
func Version() int { return 0 }

// keepFiles does nothing: on this system, no process is started as a helper.
func keepFiles() {}

// become returns an error: only Linux has Landlock.
func (r Rules) become(_, _ []string) error {
	return errors.New("confining " + r.Program + ": supported only on Linux")
}
