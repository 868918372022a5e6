package store_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
)

// wantUnreadable checks that the history begins with an entry with an unreadable change or
// outcome, for the reason why, and continues with the others.
func wantUnreadable(t *testing.T, s store.Store, unreadable audit.Entry, why string, others ...audit.Entry) {
	t.Helper()
	list := historyOf(t, s, time.Time{})
	if len(list) == 0 || !strings.Contains(list[0].Unreadable, why) || why == "" {
		t.Fatalf("got %+v, want the first unreadable: %s", list, why)
	}
	got := list[0]
	got.Unreadable, got.Commit = "", ""
	if diff := cmp.Diff(unreadable, got, cmp.FilterPath(func(p cmp.Path) bool { return strings.HasSuffix(p.Last().String(), "Digest") }, cmp.Ignore())); diff != "" {
		t.Errorf("the unreadable change (-want +got):\n%s", diff)
	}
	for i, other := range others {
		if i+1 >= len(list) || list[i+1].Unreadable != "" || list[i+1].Change.ID != other.Change.ID || (list[i+1].Outcome != nil) != (other.Outcome != nil) {
			t.Errorf("the others are %+v", list[1:])
		}
	}
}

// nothingOf returns the entry of a change of which only the ID can be read.
func nothingOf(change audit.Change) audit.Entry {
	return audit.Entry{Change: audit.Change{ID: change.ID, Time: change.Time}}
}

// TestBrokenRecords replaces a record with invalid content: its entry is unreadable, and the
// other records can still be read.
func TestBrokenRecords(t *testing.T) {
	t.Parallel()
	first, second := changed(0), changed(1)
	newer := nothingOf(first)
	newer.Change.Format = 2
	for name, tt := range map[string]struct{ file, content, want string }{
		"empty":        {first.ID + ".json", ``, "restore the record from a backup"},
		"null":         {first.ID + ".json", `null`, "restore the record from a backup"},
		"a list":       {first.ID + ".json", `[]`, "restore the record from a backup"},
		"deep":         {first.ID + ".json", strings.Repeat(`[`, 1<<20), "restore the record from a backup"},
		"no UTF-8":     {first.ID + ".json", "{\"format\": 1, \"\xff\"", "restore the record from a backup"},
		"enormous":     {first.ID + ".json", strings.Repeat(" ", 8<<20+1), "it has 8388609 bytes"},
		"negative":     {first.ID + ".json", `{"format": -1, "id": "` + first.ID + `"}`, "it has no format"},
		"cut off":      {first.ID + ".json", `{"format": 1, "id": "` + first.ID, "restore the record from a backup"},
		"newer":        {first.ID + ".json", `{"format": 2, "id": "` + first.ID + `"}`, "a newer numaform wrote it (format 2, but this version supports only 1): use that version"},
		"no format":    {first.ID + ".json", `{"id": "` + first.ID + `"}`, "it has no format"},
		"another's":    {first.ID + ".json", `{"format": 1, "id": "` + second.ID + `"}`, `it is the record of change "` + second.ID},
		"of an unkind": {first.ID + ".json", `{"format": 1, "id": "` + first.ID + `", "added": 7}`, "restore the record from a backup"},
		"outcome":      {first.ID + ".outcome.json", ``, "restore the record from a backup"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := store.NewDirectory(t.TempDir())
			begin(t, d, desired(), first)
			begin(t, d, desired(), second)
			put(t, d.Path(), "history/"+tt.file, tt.content)
			want := nothingOf(first)
			switch name {
			case "newer":
				want = newer
			case "outcome":
				want = open(first)
			}
			wantUnreadable(t, d, want, tt.want, open(second))
			wantUnreadable(t, d, want, filepath.Join(d.Path(), "history", tt.file), open(second))
			wantHistory(t, d, second.Time, open(second)) // only requested records are opened
		})
	}
	t.Run("a link", func(t *testing.T) {
		t.Parallel()
		d := store.NewDirectory(t.TempDir())
		begin(t, d, desired(), first)
		begin(t, d, desired(), second)
		name := filepath.Join(d.Path(), "history", first.ID+".json")
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		link(t, d.Path(), "history/"+first.ID+".json", "/etc/passwd")
		wantUnreadable(t, d, nothingOf(first), "it is a symbolic link", open(second))
	})
}

// TestRecordOfANewerNumaform checks records of a newer format: reading fails if this
// installation wrote the record; other records are unreadable entries.
func TestRecordOfANewerNumaform(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	s, keyFile := installation(t, d)
	first, second := changed(0, 2000), changed(1)
	begin(t, s, desired(), first)
	record := map[string]any{"format": 2, "id": second.ID, "cluster_id": "prod", "added": "in another way"}
	write := func() {
		t.Helper()
		content, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		put(t, d.Path(), "history/"+second.ID+".json", string(content))
	}
	for _, mac := range []string{"", strings.Repeat("00", 32)} {
		record["mac"] = mac
		write()
		list := historyOf(t, s, time.Time{})
		if len(list) != 2 || !list[0].Verified || list[1].Verified || !strings.Contains(list[1].Unreadable, "a newer numaform wrote it (format 2") {
			t.Errorf("with the MAC %q: %+v", mac, list)
		}
	}
	content, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	var key struct{ Key []byte }
	if err := json.Unmarshal(content, &key); err != nil || len(key.Key) != audit.KeySize {
		t.Fatal(err, len(key.Key))
	}
	delete(record, "mac")
	sealed, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	digest, mac := sha256.Sum256(sealed), hmac.New(sha256.New, key.Key)
	fmt.Fprintf(mac, "%q %q %q %x", "numaform history 1 change", "prod", second.ID, [][]byte{digest[:]})
	record["mac"] = hex.EncodeToString(mac.Sum(nil))
	write()
	_, err = s.History(t.Context(), time.Time{})
	wantError(t, err, second.ID+".json", "a newer numaform wrote it (format 2, but this version supports only 1): use that version")
}

func TestHistoryOfOtherWriters(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"notes.json", "20261121T134501Z.json", ".x.json", "2026/x.json", "20261121T134501Z-1.outcome.outcome.json"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := store.NewDirectory(t.TempDir())
			begin(t, d, desired(), changed(0))
			put(t, d.Path(), "history/"+name, "mine")
			wantHistory(t, d, time.Time{}, open(changed(0)))
			_, err := d.Files()
			wantError(t, err, "history/"+name+" is not part of a fleet", "move it out")
		})
	}
}

// TestCrashedRecord ends a Begin right after it was staged: the record is in the history
// before its file exists.
func TestCrashedRecord(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	_, base := readFrom(t, d)
	d.Interrupt(func(name string) error {
		if name != "next.json" {
			return errCrash
		}
		return nil
	})
	if err := d.Begin(t.Context(), base, desired(), changed(0)); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(d.Path(), "history")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the record is there already: %v", err)
	}
	again := store.NewDirectory(d.Path())
	wantFiles(t, again, desired())
	wantHistory(t, again, time.Time{}, open(changed(0)))
	end(t, again, changed(0))
	wantHistory(t, again, time.Time{}, closed(changed(0)))
	wantNoStage(t, again)
}

// gated reports whether the gate of a directory is locked against a reader (LOCK_SH) or a
// writer (LOCK_EX).
func gated(t *testing.T, dir string, how int) bool {
	t.Helper()
	gate, err := os.Open(filepath.Join(dir, store.PrivateDir, "gate"))
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close() //nolint:errcheck // nothing was written
	err = unix.Flock(int(gate.Fd()), how|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatal(err)
	}
	return err != nil
}

// TestGate checks that readers are locked out of a directory while it is written, and
// writers while it is read.
func TestGate(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	d.Interrupt(func(name string) error {
		if !gated(t, d.Path(), unix.LOCK_SH) {
			t.Errorf("a reader may come before %s is written", name)
		}
		return nil
	})
	begin(t, d, desired(), changed(0))
	d.Reading(func() {
		if !gated(t, d.Path(), unix.LOCK_EX) {
			t.Error("a writer may come while the files are read")
		}
	})
	wantFiles(t, d, desired())
}

// TestReadDuringWrites runs readers concurrently with a writer. They see only complete
// fleets, and the history then contains all changes.
func TestReadDuringWrites(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(filepath.Join(t.TempDir(), "fleet"))
	fleets := []generator.Files{
		render(map[fleet.VMID]string{2000: "pve-1", 2001: "pve-2"}),
		render(map[fleet.VMID]string{2002: "pve-1", 2003: "pve-2"}),
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				files, _, err := store.NewDirectory(d.Path()).Read(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if len(files) > 0 && !cmp.Equal(files, fleets[0]) && !cmp.Equal(files, fleets[1]) {
					t.Errorf("a fleet of two: %v", sorted(files))
					return
				}
			}
		})
	}
	var want []audit.Entry
	for i := range 12 {
		begin(t, d, fleets[i%2], changed(i))
		want = append(want, open(changed(i)))
	}
	close(done)
	readers.Wait()
	wantHistory(t, d, time.Time{}, want...)
}

// sorted returns the names of node files.
func sorted(files generator.Files) []string {
	var names []string
	for name := range files {
		if strings.Contains(name, "node-") {
			names = append(names, name)
		}
	}
	return names
}

// TestDiskFull checks that a write that fails on a full disk changes neither the files nor
// the history.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	begin(t, d, desired(), changed(0))
	_, base := readFrom(t, d)
	full := errors.New("no space left on device")
	d.Interrupt(func(string) error { return full })
	if err := d.Begin(t.Context(), base, render(nil), changed(1)); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	d.Interrupt(nil)
	wantFiles(t, d, desired())
	wantHistory(t, d, time.Time{}, open(changed(0)))
}

func TestLockNamesItsHolder(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	unlock, err := d.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Lock(t.Context())
	host, hostErr := os.Hostname()
	if hostErr != nil {
		t.Fatal(hostErr)
	}
	wantError(t, err, "held by process ", " on "+host)
	if err := unlock(); err != nil {
		t.Error(err)
	}
}
