package main

import "testing"

// TestUntagged checks which versions are not from builds of a tag.
func TestUntagged(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"1.2.3": false, "1.2.3-rc.1": false, "1.2.3-alpha-2": false,
		"1.2.3-4-g0123abc": true, "1.2.3-rc.1-4-g0123abc": true, "0.0.0-g0123abc": true,
		"1.2.3-dirty": true, "1.2.3-4-g0123abc-dirty": true,
	} {
		if got := untagged.MatchString(version); got != want {
			t.Errorf("%s is from another commit than a tag's: %t, want %t", version, got, want)
		}
	}
}
