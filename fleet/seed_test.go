package fleet_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
)

func TestSeedVolume(t *testing.T) {
	t.Parallel()
	const key fleet.Key = "0123456789abcdef0123456789abcdef"
	volume := fleet.SeedVolume("local", "prod-2001", 2002, key)
	if volume != "local:iso/numaform-prod-2001-2002-01234567.iso" {
		t.Errorf("volume %q", volume)
	}
	if none := fleet.SeedVolume("", "prod", 2001, key); none != "" {
		t.Errorf("without a storage: %q", none)
	}
	want := fleet.Seed{Volume: volume, Storage: "local", ClusterID: "prod-2001", VMID: 2002, Generation: "01234567"}
	got, ok := fleet.ParseSeed(volume)
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("parsed %v (-want +got):\n%s", ok, diff)
	}
	if !got.Of(2002, key) || got.Of(2001, key) || got.Of(2002, "1123456789abcdef0123456789abcdef") {
		t.Errorf("whose it is: %+v", got)
	}
}

// TestUnmanagedSeeds checks that unmanaged volumes are never treated as ours.
func TestUnmanagedSeeds(t *testing.T) {
	t.Parallel()
	for _, volume := range []string{
		"", "local:iso/debian.iso", "local:iso/numaform-prod-2001-01234567.img", "local:iso/numaform-prod-2001-0123456.iso",
		"local:iso/numaform-prod-2001-0123456G.iso", "local:iso/numaform-prod-99-01234567.iso", "local:iso/numaform-prod-02001-01234567.iso",
		"local:iso/numaform-prod-1000000000-01234567.iso", "local:iso/numaform--2001-01234567.iso", "local:iso/numaform-Prod-2001-01234567.iso",
		"local:iso/numaform-2001-01234567.iso", "local:iso/x/numaform-prod-2001-01234567.iso", "local:iso/../numaform-prod-2001-01234567.iso",
		"local:images/numaform-prod-2001-01234567.iso", ":iso/numaform-prod-2001-01234567.iso", "a/b:iso/numaform-prod-2001-01234567.iso",
		"local:iso/numaform-prod-2001-01234567.iso\n", "local:iso/numaform-prod-2001-01234567.iso,media=cdrom",
	} {
		if seed, ok := fleet.ParseSeed(volume); ok {
			t.Errorf("%q is taken for %+v", volume, seed)
		}
	}
}

func TestSeedRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		storage := rapid.StringMatching(`[A-Za-z][A-Za-z0-9_.-]{0,8}`).Draw(t, "storage")
		cluster := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?`).Draw(t, "cluster")
		vmid := fleet.VMID(rapid.IntRange(int(fleet.MinVMID), int(fleet.MaxVMID)).Draw(t, "vmid"))
		key := fleet.Key(rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "key"))
		volume := fleet.SeedVolume(storage, cluster, vmid, key)
		seed, ok := fleet.ParseSeed(volume)
		if !ok || seed.ClusterID != cluster || seed.Storage != storage || seed.Volume != volume || !seed.Of(vmid, key) {
			t.Fatalf("%s parses as %+v, %v", volume, seed, ok)
		}
	})
}
