package state_test

import (
	"testing"

	"github.com/numaform/numaform/state"
)

// TestServersHaveOneSpelling checks the canonical form of an API server's URL.
func TestServersHaveOneSpelling(t *testing.T) {
	t.Parallel()
	for spelling, want := range map[string]string{
		"https://api.lab:6443":        "https://api.lab:6443",
		"HTTPS://API.lab:6443/":       "https://api.lab:6443",
		"https://api.lab":             "https://api.lab:443",
		"http://api.lab/":             "http://api.lab:80",
		"https://[FD00::1]:6443":      "https://[fd00::1]:6443",
		"https://rancher/k8s/c/Lab/":  "https://rancher:443/k8s/c/Lab",
		"https://rancher/k8s/c/other": "https://rancher:443/k8s/c/other",
		"no url":                      "no url",
	} {
		if got := state.CanonicalServer(spelling); got != want {
			t.Errorf("%s: got %s, want %s", spelling, got, want)
		}
	}
}
