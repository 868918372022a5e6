package testenv

import "flag"

// RunAtOnce sets how many parallel tests of this binary run at once, unless a flag sets it.
// Use it for tests that mostly wait: for Proxmox tasks, nodes or stale locks. Call it from
// TestMain.
func RunAtOnce(tests string) error {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", tests)
}
