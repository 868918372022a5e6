//go:build !linux

package confine

import "errors"

// Version returns 0: only Linux has Landlock.
func Version() int { return 0 }

// keepFiles does nothing: what Go opens is not passed on anyway.
func keepFiles() {}

// become refuses: nobody asks for it here.
func (r Rules) become(_, _ []string) error {
	return errors.New("confining " + r.Program + ": only Linux can")
}
