package scheduling_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/scheduling"
)

// TestGeneratedTypesAreRead checks that the file with the default sizes and all overheads
// contains DefaultInstanceTypes, and that a file without overheads is read with the same
// reservations.
func TestGeneratedTypesAreRead(t *testing.T) {
	t.Parallel()
	for _, overhead := range []bool{true, false} {
		made, err := scheduling.GenerateTypes(scheduling.TypeOptions{
			VCPUs: []int{1, 2, 4, 8, 16}, Factors: []int{2, 3, 4, 8, 3}, Kubelet: overhead, System: overhead, Eviction: overhead,
		})
		if err != nil {
			t.Fatal(err)
		}
		text, err := scheduling.FormatInstanceTypes(made)
		if err != nil {
			t.Fatal(err)
		}
		if overhead != strings.Contains(string(text), "overhead") {
			t.Errorf("overhead %t:\n%s", overhead, text)
		}
		read, err := scheduling.ParseInstanceTypes(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(scheduling.DefaultInstanceTypes(), read); diff != "" {
			t.Errorf("overhead %t (-default +read):\n%s", overhead, diff)
		}
	}
}

func TestGeneratedTypes(t *testing.T) {
	t.Parallel()
	made, err := scheduling.GenerateTypes(scheduling.TypeOptions{VCPUs: []int{2}, Factors: []int{16, 6}, DiskGiB: 40, System: true})
	if err != nil {
		t.Fatal(err)
	}
	text, err := scheduling.FormatInstanceTypes(made)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[
  {
    "name": "x1.2VCPU-32GB",
    "capacity": {
      "cpu": "2",
      "ephemeral-storage": "40Gi",
      "memory": "32Gi",
      "pods": "110"
    },
    "capacitytype": "on-demand",
    "overhead": {
      "KubeReserved": null,
      "SystemReserved": {
        "cpu": "10m",
        "memory": "64Mi"
      },
      "EvictionThreshold": null
    }
  },
  {
    "name": "e1.2VCPU-12GB",
    "capacity": {
      "cpu": "2",
      "ephemeral-storage": "40Gi",
      "memory": "12Gi",
      "pods": "110"
    },
    "capacitytype": "on-demand",
    "overhead": {
      "KubeReserved": null,
      "SystemReserved": {
        "cpu": "10m",
        "memory": "64Mi"
      },
      "EvictionThreshold": null
    }
  }
]`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for want, o := range map[string]scheduling.TypeOptions{
		"--cpus 0: must be from 1":      {VCPUs: []int{0}, Factors: []int{2}},
		"--memfactor -1: must be":       {VCPUs: []int{1}, Factors: []int{-1}},
		"--storage -1: must be from 0 ": {VCPUs: []int{1}, Factors: []int{1}, DiskGiB: -1},
	} {
		if _, err := scheduling.GenerateTypes(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
