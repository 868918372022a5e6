package scaler_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// TestSeedStorage checks which storage of the VM's host gets the seed, and that the seed's
// name contains the requested key.
func TestSeedStorage(t *testing.T) {
	t.Parallel()
	iso := func(name string) topology.Storage {
		return topology.Storage{Name: name, Active: true, Content: []string{"backup", "iso"}}
	}
	off, images := iso("aaa"), topology.Storage{Name: "aab", Active: true, Content: []string{"images"}}
	off.Active = false
	for name, c := range map[string]struct {
		wanted   string
		storages []topology.Storage
		want     string // "-" for an error
	}{
		"none":            {"", []topology.Storage{iso("local")}, ""},
		"any":             {"*", []topology.Storage{off, images, iso("local"), iso("cephfs")}, "cephfs"},
		"by name":         {"local", []topology.Storage{iso("cephfs"), iso("local")}, "local"},
		"any, none fits":  {"*", []topology.Storage{off, images}, "-"},
		"by name, absent": {"cephfs", []topology.Storage{iso("local")}, "-"},
		"by name, images": {"aab", []topology.Storage{images, iso("local")}, "-"},
		"by name, off":    {"aaa", []topology.Storage{off, iso("local")}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, seen := request(pve2), snapshot()
			asked.Spec.SeedStorage, asked.Key = c.wanted, "89abcdef89abcdef89abcdef89abcdef"
			seen.Host(pve2).Storages = c.storages
			change, err := newScaler(t, nil).Propose(t.Context(), seen, []scaler.Request{asked}, nil)
			if c.want == "-" {
				if !as[*scaler.NoSeedStorageError](err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := fleet.SeedVolume(c.want, "test", change.Added[0].VMID, "89abcdef")
			if diff := cmp.Diff(want, change.Added[0].Seed); diff != "" {
				t.Errorf("seed (-want +got):\n%s", diff)
			}
		})
	}
}
