package store_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/store"
)

// TestRestoreKey restores the key and the history of an installation on another machine: the
// records are verified there. Another key is never replaced.
func TestRestoreKey(t *testing.T) {
	t.Parallel()
	s, _ := installation(t, store.NewDirectory(t.TempDir()))
	if key, err := s.Key(t.Context()); key != nil || err != nil {
		t.Fatalf("the key before the first change: %q, %v", key, err)
	}
	first := changed(0, 2000, 2001)
	begin(t, s, desired(), first)
	end(t, s, first)
	key, err := s.Key(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	to, _ := installation(t, store.NewDirectory(t.TempDir()))
	if exists, err := to.CheckKey(t.Context(), key); exists || err != nil {
		t.Fatalf("before the restore: the key exists: %v, %v", exists, err)
	}
	for range 2 {
		if err := to.RestoreKey(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	restore(t, to, contentOf(t, s))
	wantVerified(t, to, time.Time{}, verified{first.ID, true, true})
	if exists, err := to.CheckKey(t.Context(), key); !exists || err != nil {
		t.Fatalf("after the restore: the key exists: %v, %v", exists, err)
	}

	other, path := installation(t, store.NewDirectory(t.TempDir()))
	begin(t, other, desired(), first)
	var wrong *store.OtherKeyError
	if err := other.RestoreKey(t.Context(), key); !errors.As(err, &wrong) || !strings.Contains(err.Error(), filepath.Base(filepath.Dir(path))) {
		t.Errorf("another key: %v, want an OtherKeyError with its place", err)
	}
	wantVerified(t, other, time.Time{}, verified{first.ID, true, false})
	for _, content := range []string{"", "{}", `{"format":9}`, strings.Repeat("x", 100)} {
		empty, _ := installation(t, store.NewDirectory(t.TempDir()))
		if err := empty.RestoreKey(t.Context(), []byte(content)); err == nil {
			t.Errorf("the key %q was restored", content)
		}
	}
}
