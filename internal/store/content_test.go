package store_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
)

// archive returns the archive of a store.
func archive(t *testing.T, s store.Store) store.Archive {
	t.Helper()
	found, err := store.ArchiveOf(s)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func contentOf(t *testing.T, s store.Store) *store.Content {
	t.Helper()
	content, err := archive(t, s).Content(t.Context())
	if err != nil {
		t.Fatalf("reading the content: %v", err)
	}
	return content
}

func restore(t *testing.T, s store.Store, content *store.Content) {
	t.Helper()
	_, base := readFrom(t, s)
	if err := archive(t, s).Restore(t.Context(), base, content); err != nil {
		t.Fatalf("restoring: %v", err)
	}
}

// longFleet writes a fleet with three changes, of which the second has no outcome, and returns
// its content.
func longFleet(t *testing.T, s store.Store) (*store.Content, []audit.Entry) {
	t.Helper()
	changes := []audit.Change{changed(0, 2000, 2003), changed(1, 2001), changed(2)}
	begin(t, s, render(map[fleet.VMID]string{2000: "pve-1", 2003: "pve-2"}), changes[0])
	end(t, s, changes[0])
	begin(t, s, desired(), changes[1])
	begin(t, s, desired(), changes[2])
	end(t, s, changes[2])
	return contentOf(t, s), []audit.Entry{closed(changes[0]), open(changes[1]), closed(changes[2])}
}

// TestRestore backs up a fleet in each kind of store: the content is the same. It restores it
// into an empty store of each kind, and into a store that was restored to an older version.
func TestRestore(t *testing.T) {
	t.Parallel()
	content, history := longFleet(t, store.NewDirectory(t.TempDir()))
	everywhere(t, func(t *testing.T, p place) {
		s := p.open(t)
		for range 2 { // the second time, there is nothing to do
			restore(t, s, content)
			wantFiles(t, p.open(t), desired())
			wantHistory(t, p.open(t), time.Time{}, history...)
		}
		if p.elsewhere != nil {
			wantHistory(t, p.elsewhere(t), time.Time{}, history...)
		}
		begin(t, p.open(t), render(nil), changed(3))
	})
	everywhere(t, func(t *testing.T, p place) {
		again, _ := longFleet(t, p.open(t))
		if diff := cmp.Diff(content, again); diff != "" {
			t.Fatalf("content (-want +got):\n%s", diff)
		}
	})
	everywhere(t, func(t *testing.T, p place) {
		s := p.open(t)
		begin(t, s, render(map[fleet.VMID]string{2000: "pve-1", 2003: "pve-2"}), history[0].Change)
		restore(t, s, content)
		wantFiles(t, p.open(t), desired())
		wantHistory(t, p.open(t), time.Time{}, history...)
	})
}

// TestRestoreRefuses checks that a restore never removes a change from the history, and writes
// nothing that a store could not contain.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		content, history := longFleet(t, p.open(t))
		s := p.open(t)
		last := changed(3)
		begin(t, s, desired(), last)
		history = append(history, open(last))
		for name, tt := range map[string]struct {
			edit func(c *store.Content)
			want string
		}{
			"older than the history": {func(*store.Content) {}, last.ID},
			"another record": {func(c *store.Content) {
				c.Records[1].Change = bytes.Replace(c.Records[1].Change, []byte("pending"), []byte("waiting"), 1)
			}, "differ"},
			"another outcome": {func(c *store.Content) {
				c.Records[0].Outcome = bytes.Replace(c.Records[0].Outcome, []byte("60000000000"), []byte("1"), 1)
			}, "differ"},
			"a path outside":     {func(c *store.Content) { c.Files["../x"] = []byte("x") }, "../x"},
			"git's":              {func(c *store.Content) { c.Files[".git/config"] = []byte("x") }, ".git/config"},
			"an ID that is none": {func(c *store.Content) { c.Records[0].ID = "../x" }, "../x"},
			"twice":              {func(c *store.Content) { c.Records = append(c.Records, c.Records[0]) }, "two records"},
			"a large file":       {func(c *store.Content) { c.Files["fleet.json"] = make([]byte, 2<<20) }, "bytes"},
			"a large record":     {func(c *store.Content) { c.Records[0].Change = make([]byte, 9<<20) }, "bytes"},
			"another cluster": {func(c *store.Content) {
				c.Files = render(nil, func(f *fleet.Fleet) { f.ClusterID = "other" })
				c.Records = nil
			}, ""},
		} {
			t.Run(name, func(t *testing.T) {
				edited := &store.Content{Files: generator.Files{}, Records: append([]store.Record{}, content.Records...)}
				for path, text := range content.Files {
					edited.Files[path] = text
				}
				tt.edit(edited)
				_, base := readFrom(t, s)
				if err := archive(t, s).Restore(t.Context(), base, edited); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want an error with %q", err, tt.want)
				}
				wantFiles(t, p.open(t), desired())
				wantHistory(t, p.open(t), time.Time{}, history...)
			})
		}
		if err := archive(t, s).Restore(t.Context(), "an old revision", content); !errors.Is(err, store.ErrMoved) {
			t.Errorf("on an old base: %v, want ErrMoved", err)
		}
	})
}

// TestCrashedRestore ends a restore at each of its steps. The fleet is then the old one or the
// restored one, and the restore can be repeated.
func TestCrashedRestore(t *testing.T) {
	t.Parallel()
	content, history := longFleet(t, store.NewDirectory(t.TempDir()))
	old := render(map[fleet.VMID]string{2000: "pve-1", 2003: "pve-2"})
	for name, at := range places() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for steps := 0; ; steps++ {
				p := at(t)
				begin(t, p.open(t), old, history[0].Change)
				s := p.open(t)
				_, base := readFrom(t, s)
				stopped, left := "", steps
				s.Interrupt(func(step string) error {
					if left--; left >= 0 {
						return nil
					}
					stopped = step
					return errCrash
				})
				err := archive(t, s).Restore(t.Context(), base, content)
				if stopped == "" && err != nil {
					t.Fatalf("after %d steps: %v", steps, err)
				}
				files, _ := readFrom(t, p.open(t))
				if !cmp.Equal(files, desired()) && !cmp.Equal(files, old) {
					t.Fatalf("stopped at %q: the fleet is neither the old one nor the restored one", stopped)
				}
				if cmp.Equal(files, desired()) != (len(historyOf(t, p.open(t), time.Time{})) == 3) {
					t.Fatalf("stopped at %q: files and history are from two versions", stopped)
				}
				restore(t, p.open(t), content)
				wantFiles(t, p.open(t), desired())
				wantHistory(t, p.open(t), time.Time{}, history...)
				if stopped == "" {
					if steps < 2 {
						t.Errorf("only %d steps", steps)
					}
					return
				}
			}
		})
	}
}

// TestContentWithoutLargeRecords backs up and restores a fleet in git to which another client
// pushed a record and an outcome that are too large to be read.
func TestContentWithoutLargeRecords(t *testing.T) {
	t.Parallel()
	for _, filters := range []string{"true", "false"} {
		t.Run("filters: "+filters, func(t *testing.T) {
			t.Parallel()
			g, _, remote := working(t)
			run(t, remote, "config", "uploadpack.allowFilter", filters)
			content, _ := longFleet(t, g)
			const id = "20261121T120000Z-aaaaaaaa"
			large := strings.Repeat("x", 9<<20)
			ann := person(t, remote)
			put(t, ann, "history/2026/11/"+id+".json", large)
			commitAll(t, ann, "a record")
			put(t, ann, "note", large)
			second := changed(1).ID
			run(t, ann, "fetch", "--quiet", "origin", "refs/notes/numaform:refs/notes/numaform")
			run(t, ann, "notes", "--ref=numaform", "add", "-F", "note", run(t, ann, "log", "--format=%H", "--", "history/2026/11/"+second+".json"))
			run(t, ann, "push", "--quiet", "origin", "refs/notes/numaform")

			got := contentOf(t, g)
			unread := got.Unread
			got.Unread = nil
			if diff := cmp.Diff(content, got); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			for _, lacks := range []string{id, second} {
				if len(unread) != 2 || !errors.As(unread[lacks], new(*store.RecordError)) {
					t.Errorf("%s is missing because of %v", lacks, unread[lacks])
				}
			}
			restore(t, g, got)

			got.Records = append(got.Records, store.Record{ID: id, Change: []byte("{}")})
			_, base := readFrom(t, g)
			if err := g.Restore(t.Context(), base, got); !errors.As(err, new(*store.RecordError)) {
				t.Errorf("restored a record that cannot be replaced: %v", err)
			}
		})
	}
}
