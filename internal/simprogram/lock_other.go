//go:build !unix

package simprogram

// lock does nothing: builds at the same time only cost time.
func lock(string) (unlock func(), err error) { return func() {}, nil }
