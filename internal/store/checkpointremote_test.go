package store_test

import (
	"slices"
	"testing"

	"github.com/numaform/numaform/internal/store"
)

// TestCheckpointRemote keeps checkpoints of two machines in a repository that also has other
// branches: each adds its own without removing another's, and nothing is committed twice.
func TestCheckpointRemote(t *testing.T) {
	t.Parallel()
	remote := bare(t)
	fleet := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote})
	begin(t, fleet, desired(), changed(0)) // the repository may be a mirror of the fleet
	open := func(cluster string) *store.CheckpointRemote {
		t.Helper()
		place, err := store.NewCheckpointRemote(remote, t.TempDir(), cluster, store.GitAuth{})
		if err != nil {
			t.Fatal(err)
		}
		return place
	}
	first, second, other := open("prod"), open("prod"), open("test")
	if list, err := first.Load(t.Context()); err != nil || len(list) > 0 {
		t.Fatalf("an empty place: %q, %v", list, err)
	}
	signed := func(text string) []byte { return []byte(text + "\n1\nx\n\n— a b\n") }
	for _, step := range []struct {
		place *store.CheckpointRemote
		log   string
		text  string
	}{{first, "1", "a"}, {second, "2", "b"}, {other, "1", "c"}, {first, "1", "d"}, {first, "1", "d"}} {
		if err := step.place.Save(t.Context(), step.log, signed(step.text)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := second.Load(t.Context())
	var got []string
	for _, one := range list {
		got = append(got, string(one))
	}
	if want := []string{string(signed("d")), string(signed("b"))}; err != nil || !slices.Equal(got, want) {
		t.Errorf("checkpoints %q, %v, want %q", got, err, want)
	}
	if commits := run(t, remote, "rev-list", "--count", "numaform-checkpoints"); commits != "4" {
		t.Errorf("%s commits, want 4", commits)
	}
	wantSound(t, remote)
	_, err = store.NewCheckpointRemote("https://user:secret@git.example/x", t.TempDir(), "prod", store.GitAuth{})
	wantError(t, err, "history.checkpoint_remote")
}
