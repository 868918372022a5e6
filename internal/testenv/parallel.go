package testenv

import "flag"

// RunAtOnce sets how many parallel tests of this binary run at once, if it was not
// asked otherwise. It is for tests that wait most of the time: for tasks of Proxmox,
// for nodes, for locks of the dead. Call it from TestMain.
func RunAtOnce(tests string) error {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", tests)
}
