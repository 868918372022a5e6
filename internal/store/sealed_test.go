package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/translog"
	"github.com/numaform/numaform/topology"
)

// installation returns a store for an installation with a key in a file.
func installation(t *testing.T, inner store.Store) (sealed *store.Sealed, key string) {
	t.Helper()
	key = filepath.Join(t.TempDir(), "history", "key")
	return store.NewSealed(inner, store.FileVault(key), "prod"), key
}

// verified states whether a change and, in Well, its outcome are verified.
type verified struct {
	ID             string
	Verified, Well bool
}

// wantVerified checks which changes and outcomes in a store's history are verified.
func wantVerified(t *testing.T, s store.Store, since time.Time, want ...verified) {
	t.Helper()
	var got []verified
	for _, e := range historyOf(t, s, since) {
		got = append(got, verified{e.Change.ID, e.Verified, e.Result() != nil})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("history (-want +got):\n%s", diff)
	}
}

func TestSealed(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		s, key := installation(t, p.open(t))
		wantVerified(t, s, time.Time{})
		if _, err := os.Stat(key); err == nil {
			t.Error("a look at the history made a key")
		}
		first, second := changed(0, 2000), changed(1, 2000, 2001)
		begin(t, s, desired(), first)
		end(t, s, first)
		begin(t, s, desired(), second)
		again := store.NewSealed(p.open(t), store.FileVault(key), "prod")
		wantVerified(t, again, time.Time{}, verified{first.ID, true, true}, verified{second.ID, true, false})
		wantVerified(t, s, second.Time, verified{second.ID, true, false})
		other, _ := installation(t, p.open(t))
		wantVerified(t, other, time.Time{}, verified{first.ID, false, false}, verified{second.ID, false, false})
		wantVerified(t, other, second.Time.Add(time.Hour), verified{second.ID, false, false})
		elsewhere := store.NewSealed(p.open(t), store.FileVault(key), "test")
		wantVerified(t, elsewhere, time.Time{}, verified{first.ID, false, false}, verified{second.ID, false, false})
		// Another client adds a record, and the outcome of the second change.
		forged := changed(2, 2002)
		begin(t, p.open(t), desired(), forged)
		end(t, p.open(t), forged)
		end(t, p.open(t), second)
		wantVerified(t, again, time.Time{}, verified{first.ID, true, true}, verified{second.ID, true, false}, verified{forged.ID, false, false})
		// Every reading includes this installation's last change.
		wantVerified(t, again, forged.Time.Add(time.Hour), verified{second.ID, true, false}, verified{forged.ID, false, false})
		fresh := store.NewSealed(p.open(t), store.FileVault(key), "prod")
		wantVerified(t, fresh, forged.Time.Add(time.Hour), verified{second.ID, true, false}, verified{forged.ID, false, false})
	})
}

// TestAdoption checks which records of a version without keys are adopted when the key is
// created: the plausible ones that have no MAC.
func TestAdoption(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		old := p.open(t)
		first, second := changed(0, 2000), changed(1, 2000, 2001)
		begin(t, old, desired(), first)
		end(t, old, first)
		begin(t, old, desired(), second)
		absurd, moved, misdated := changed(2), changed(3), changed(4)
		absurd.ID, absurd.Time = "99991231T235959Z-1", time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
		moved.ClusterID = "test"
		misdated.Time = misdated.Time.Add(time.Hour)
		begin(t, old, desired(), moved)
		begin(t, old, desired(), misdated)
		begin(t, old, desired(), absurd)
		s, key := installation(t, p.open(t))
		before := []verified{
			{first.ID, true, true}, {second.ID, true, false}, {moved.ID, false, false}, {misdated.ID, false, false}, {absurd.ID, false, false},
		}
		wantVerified(t, s, time.Time{}, before...)
		third := changed(5)
		begin(t, s, desired(), third)
		end(t, old, second) // too late to be adopted
		after := append(before[:4:4], verified{third.ID, true, false}, before[4])
		wantVerified(t, s, time.Time{}, after...)
		wantVerified(t, store.NewSealed(p.open(t), store.FileVault(key), "prod"), time.Time{}, after...)
		// Once a record has a MAC, none is adopted any more.
		other, _ := installation(t, p.open(t))
		begin(t, other, desired(), changed(6))
		for _, e := range historyOf(t, other, time.Time{}) {
			if mine := e.Change.ID == changed(6).ID; e.Verified != mine {
				t.Errorf("%s: verified %t", e.Change.ID, e.Verified)
			}
		}
	})
}

// TestReplacedRecords checks that edited, exchanged and copied records are not verified.
func TestReplacedRecords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fleet")
	s, _ := installation(t, store.NewDirectory(dir))
	first, second := changed(0, 2000), changed(1, 2001)
	for _, change := range []audit.Change{first, second} {
		begin(t, s, desired(), change)
		end(t, s, change)
	}
	path := func(id, suffix string) string { return filepath.Join(dir, "history", id+suffix) }
	edit := func(id, suffix string, f func(fields map[string]any)) {
		t.Helper()
		content, err := os.ReadFile(path(id, suffix))
		var fields map[string]any
		if err == nil {
			err = json.Unmarshal(content, &fields)
		}
		if err != nil {
			t.Fatal(err)
		}
		f(fields)
		if content, err = json.Marshal(fields); err == nil {
			err = os.WriteFile(path(id, suffix), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	edit(first.ID, ".outcome.json", func(fields map[string]any) { fields["extra"] = 1 })
	wantVerified(t, s, time.Time{}, verified{first.ID, true, false}, verified{second.ID, true, true})
	// The outcome of one change is not valid for another.
	content, err := os.ReadFile(path(second.ID, ".outcome.json"))
	if err == nil {
		err = os.WriteFile(path(first.ID, ".outcome.json"), []byte(strings.ReplaceAll(string(content), second.ID, first.ID)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	wantVerified(t, s, time.Time{}, verified{first.ID, true, false}, verified{second.ID, true, true})
	edit(second.ID, ".json", func(fields map[string]any) { fields["why"] = "something else" })
	wantVerified(t, s, time.Time{}, verified{first.ID, true, false}, verified{second.ID, false, false})
	// A copy under another name is not a second change.
	if content, err = os.ReadFile(path(first.ID, ".json")); err != nil {
		t.Fatal(err)
	}
	copied := strings.Replace(first.ID, "-0", "-1", 1)
	if err := os.WriteFile(path(copied, ".json"), []byte(strings.ReplaceAll(string(content), first.ID, copied)), 0o600); err != nil {
		t.Fatal(err)
	}
	wantVerified(t, s, time.Time{}, verified{first.ID, true, false}, verified{copied, false, false}, verified{second.ID, false, false})
}

// TestReplacedNote replaces the note of a commit with git: the outcome is not verified, and
// the change counts as unfinished.
func TestReplacedNote(t *testing.T) {
	t.Parallel()
	remote := bare(t)
	s, key := installation(t, openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote}))
	change := changed(0, 2000)
	begin(t, s, desired(), change)
	end(t, s, change)
	failed := strings.Replace(run(t, remote, "notes", "--ref=numaform", "show", "main"), `"host": `, `"error": "no room", "host": `, 1)
	run(t, remote, "notes", "--ref=numaform", "add", "-f", "-m", failed, "main")
	fresh := store.NewSealed(openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote}), store.FileVault(key), "prod")
	list := historyOf(t, fresh, time.Time{})
	if len(list) != 1 || !list[0].Verified || list[0].OutcomeVerified || list[0].Outcome == nil || list[0].Outcome.Hosts[0].Error != "no room" {
		t.Errorf("history %+v", list)
	}
	if left := list[0].Unfinished(); len(left) != 1 {
		t.Errorf("unfinished %v, want the host of the change", left)
	}
}

// TestManyForgedRecords finds the installation's own record among thousands of later ones
// from the same second.
func TestManyForgedRecords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fleet")
	s, _ := installation(t, store.NewDirectory(dir))
	own := changed(0, 2000)
	begin(t, s, desired(), own)
	end(t, s, own)
	forged := changed(9)
	for i := range 5000 {
		forged.ID = forged.ID[:17] + fmt.Sprintf("%08x", i)
		content, err := json.Marshal(forged)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "history", forged.ID+".json"), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	list := historyOf(t, s, forged.Time.Add(time.Hour))
	if len(list) != 2 || list[0].Change.ID != own.ID || !list[0].Verified || list[0].Result() == nil || list[1].Verified {
		t.Errorf("%d changes, want the own one and the last", len(list))
	}
}

// TestOneKey starts several stores at the same time: they create one key, which verifies
// the records of all of them.
func TestOneKey(t *testing.T) {
	t.Parallel()
	dir, key := filepath.Join(t.TempDir(), "fleet"), filepath.Join(t.TempDir(), "key")
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			s := store.NewSealed(store.NewDirectory(dir), store.FileVault(key), "prod")
			_, base, err := s.Read(context.Background())
			if err == nil {
				err = s.Begin(context.Background(), base, desired(), changed(i))
			}
			if err != nil && !errors.Is(err, store.ErrMoved) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, e := range historyOf(t, store.NewSealed(store.NewDirectory(dir), store.FileVault(key), "prod"), time.Time{}) {
		if !e.Verified {
			t.Errorf("%s is not verified", e.Change.ID)
		}
	}
	info, err := os.Stat(key)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key %v, %v, want mode 0600", info, err)
	}
	files, err := os.ReadDir(filepath.Dir(key))
	if err != nil || len(files) != 3 {
		t.Errorf("files %v, %v, want the key, the head and its lock", files, err)
	}
}

// TestKeyFile checks the errors for an invalid key, and for a file that others can write.
func TestKeyFile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		content, want string
		mode          os.FileMode
	}{
		"no key":    {"secret\n", "restore the key; if it is lost, move the unreadable key elsewhere", 0o600},
		"a short":   {`{"format": 1, "key": "AAAA"}`, "not a numaform key", 0o600},
		"a newer":   {`{"format": 2}`, "a newer numaform wrote it", 0o600},
		"of others": {`{"format": 1, "key": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}`, "chmod 600", 0o666},
		"too large": {strings.Repeat(" ", 1<<20), "contains more than", 0o600},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.mode); err != nil {
				t.Fatal(err)
			}
			s := store.NewSealed(store.NewDirectory(filepath.Join(t.TempDir(), "fleet")), store.FileVault(path), "prod")
			_, base := readFrom(t, s)
			_, err := s.History(t.Context(), time.Time{})
			for _, err := range []error{err, s.Begin(t.Context(), base, desired(), changed(0))} {
				if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "AAEC") {
					t.Errorf("%v, want %q", err, tt.want)
				}
			}
		})
	}
}

// TestKeyOfAnotherInCreate creates a key where another process just created one that
// other users can write: the fix is chmod, not another directory.
func TestKeyOfAnotherInCreate(t *testing.T) {
	t.Parallel()
	vault := store.FileVault(filepath.Join(t.TempDir(), "key"))
	if err := os.WriteFile(string(vault), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(string(vault), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := vault.Create(t.Context(), []byte("{}"))
	if err == nil || !strings.Contains(err.Error(), "run chmod 600") || strings.Contains(err.Error(), "state_dir") {
		t.Errorf("existing key: %v", err)
	}
	_, err = store.FileVault("/proc/numaform/key").Create(t.Context(), []byte("{}"))
	if err == nil || !strings.Contains(err.Error(), "set state_dir or history.key_file to a writable location") {
		t.Errorf("no directory: %v", err)
	}
}

// TestKeySecret stores the key in a Secret, which never changes.
func TestKeySecret(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	vault := store.SecretVault{Client: client, Namespace: "numaform", Name: "fleet-history"}
	dir := filepath.Join(t.TempDir(), "fleet")
	s := store.NewSealed(store.NewDirectory(dir), vault, "prod")
	begin(t, s, desired(), changed(0))
	secret, err := client.CoreV1().Secrets("numaform").Get(t.Context(), "fleet-history", metav1.GetOptions{})
	if err != nil || secret.Immutable == nil || !*secret.Immutable {
		t.Fatalf("secret %v, %v, want an immutable one", secret, err)
	}
	again := store.NewSealed(store.NewDirectory(dir), vault, "prod")
	wantVerified(t, again, time.Time{}, verified{changed(0).ID, true, false})
	content, err := vault.Create(t.Context(), []byte("another"))
	if err != nil || string(content) != string(secret.Data["key"]) {
		t.Errorf("%s, %v, want the key that exists", content, err)
	}
	public, err := again.PublicKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Without permission to read the key, the history is readable, and writes fail.
	client.PrependReactor("get", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "fleet-history", errors.New("no"))
	})
	viewer := store.NewSealed(store.NewDirectory(dir), vault, "prod")
	wantVerified(t, viewer, time.Time{}, verified{changed(0).ID, false, false})
	if found, err := viewer.Verify(t.Context(), audit.Evidence{Keys: []*translog.Key{public}}); err != nil || len(found.Findings) > 0 || found.Logs[0].Size != 1 {
		t.Errorf("the public key alone: %+v, %v", found, err)
	}
	_, base := readFrom(t, viewer)
	if err := viewer.Begin(t.Context(), base, desired(), changed(1)); err == nil || !strings.Contains(err.Error(), "grant this user read access") {
		t.Errorf("without the right: %v", err)
	}
	// If the cluster does not respond, reading fails: the records must not become
	// unverified.
	broken := fake.NewClientset(&corev1.Secret{})
	broken.PrependReactor("get", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("timeout") })
	s = store.NewSealed(store.NewDirectory(dir), store.SecretVault{Client: broken, Namespace: "numaform", Name: "x"}, "prod")
	if _, err := s.History(t.Context(), time.Time{}); err == nil {
		t.Error("the history is read without its key")
	}

	// Only an error about permissions has a hint about them.
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "x", errors.New("no"))
	for _, cause := range []error{forbidden, errors.New("timeout")} {
		refusing := fake.NewClientset()
		refusing.PrependReactor("create", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, cause })
		_, err := store.SecretVault{Client: refusing, Namespace: "numaform", Name: "x"}.Create(t.Context(), []byte("key"))
		if err == nil || strings.Contains(err.Error(), "grant numaform the permission") != apierrors.IsForbidden(cause) {
			t.Errorf("%v: %v, want a hint only without permission", cause, err)
		}
	}
}

// TestEndOfUnknownChange refuses the outcome of a change that this process did not begin.
func TestEndOfUnknownChange(t *testing.T) {
	t.Parallel()
	inner := store.NewDirectory(filepath.Join(t.TempDir(), "fleet"))
	s, key := installation(t, inner)
	change := changed(0)
	begin(t, s, desired(), change)
	again := store.NewSealed(inner, store.FileVault(key), "prod")
	if err := again.End(t.Context(), ended(change)); err == nil || !strings.Contains(err.Error(), "did not begin it") {
		t.Errorf("got %v", err)
	}
	end(t, s, change)
	second := audit.Outcome{ID: change.ID, Hosts: []audit.Ended{{Host: topology.HostID{Region: "r", Host: "h"}}}}
	for _, sealed := range []*store.Sealed{s, again} {
		if err := sealed.End(t.Context(), second); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a second outcome: %v", err)
		}
	}
	for _, id := range []string{changed(5).ID, "x", ""} {
		if err := s.End(t.Context(), audit.Outcome{ID: id}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the outcome of change %q, which does not exist: %v", id, err)
		}
	}
}
