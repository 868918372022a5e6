package scaler

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/workdir"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// Older versions worked in the fleet's directory, and kept local states and unsaved
// states there. The states are moved only once, because anyone who can push could place
// another state there later.

// migrationFile, next to the states, records that the migration is done.
const migrationFile = "migrated.json"

// oldWork is the older versions' working directory, relative to the fleet's directory.
const oldWork = ".numaform/work"

// migration is the content of migrationFile.
type migration struct {
	Time time.Time `json:"time"`
	From string    `json:"from"`
	Took []string  `json:"took,omitempty"`
}

// migrated reports whether the migration is done, including when there was nothing to
// migrate.
func (p places) migrated() bool {
	_, err := os.Lstat(filepath.Join(p.states, migrationFile))
	return err == nil
}

// relic is a state, or the record of an engine's run, in the fleet's directory.
type relic struct {
	// dir is the fleet's directory, and name the path relative to it.
	dir, name string
	host      topology.HostID
	// to is its new name; empty if it is the record of an engine's run.
	to string
}

func (r *relic) path() string { return filepath.Join(r.dir, filepath.FromSlash(r.name)) }

// migrate moves the states of an older version, unless that is done already. It repeats
// an interrupted migration, and never changes files at the new place.
func (s *Scaler) migrate(at places) error {
	if at.migrated() {
		return nil
	}
	relics, err := s.relics()
	if err != nil {
		return err
	}
	done := migration{Time: s.config.Clock.Now().UTC(), From: s.config.Dir}
	for i := range relics {
		took, err := s.take(at, &relics[i])
		if err != nil {
			return fmt.Errorf("migrating the state of %s: %w", relics[i].host, err)
		}
		if took {
			done.Took = append(done.Took, relics[i].name)
		}
	}
	for i := range relics {
		// An older version then finds no state, rather than a stale one.
		if old := relics[i].path(); slices.Contains(done.Took, relics[i].name) {
			if err := os.Rename(old, old+".migrated"); err != nil {
				return fmt.Errorf("migrating the state of %s: %w: an older numaform would still use %s: move this file elsewhere, then try again", relics[i].host, err, old)
			}
		}
	}
	content, err := json.Marshal(done)
	if err == nil {
		err = renameio.WriteFile(filepath.Join(at.states, migrationFile), content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("recording the migration of states: %w", err)
	}
	return nil
}

// relics lists the states and run records of an older version in the fleet's directory.
func (s *Scaler) relics() ([]relic, error) {
	kinds := []struct{ below, file, to string }{
		{below: ".", file: stateFile, to: stateFile},
		{below: oldWork, file: erroredFile, to: erroredFile},
		{below: oldWork, file: ".terraform/numaform/run.json"},
	}
	var found []relic
	for _, kind := range kinds {
		if kind.to == stateFile && !s.keepsStates() {
			continue
		}
		dirs, err := filepath.Glob(filepath.Join(s.config.Dir, filepath.FromSlash(kind.below+"/*/*")))
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			// Glob would skip a file below a directory that cannot be listed.
			if _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(kind.file))); err != nil {
				continue
			}
			host := filepath.Base(dir)
			region := filepath.Base(filepath.Dir(dir))
			if strings.HasPrefix(host, ".") || strings.HasPrefix(region, ".") {
				continue
			}
			id := topology.HostID{Region: topology.RegionName(region), Host: topology.HostName(host)}
			name := path.Join(kind.below, generator.RootDir(id), kind.file)
			found = append(found, relic{dir: s.config.Dir, name: name, host: id, to: kind.to})
		}
	}
	return found, nil
}

// take copies a state to its new place, if that is free, and reports whether the new file
// is a copy of the old one. For the record of a run, it writes a record that proves that
// the run's lock is stale, and reports true.
func (s *Scaler) take(at places, old *relic) (bool, error) {
	if old.to == "" {
		// An older version that died left its lock on the state. Its run record proves
		// that the lock is stale.
		content, err := old.read()
		if err != nil {
			return false, err
		}
		former, err := filepath.Abs(filepath.Dir(filepath.Dir(filepath.Dir(old.path()))))
		if err != nil {
			return false, err
		}
		return true, state.TakeOver(content, former, filepath.Join(at.work, filepath.FromSlash(generator.RootDir(old.host))))
	}
	target := at.state(old.host, old.to)
	_, err := os.Lstat(target)
	exists := !errors.Is(err, fs.ErrNotExist)
	if exists && err != nil {
		return false, err
	}
	content, err := old.read()
	if exists {
		current, failed := os.ReadFile(target)
		return err == nil && bytes.Equal(current, content), failed
	}
	if err != nil {
		return false, err
	}
	if err := workdir.Private(filepath.Dir(target)); err != nil {
		return false, err
	}
	if err := renameio.WriteFile(target, content, 0o600); err != nil {
		return false, err
	}
	s.config.Progress(old.host, fmt.Sprintf("moved the state %s to %s", old.path(), target))
	return true, nil
}

// maxState limits the size of a migrated state.
const maxState = 256 << 20

// removeRecord is the hint for the record of an engine's run. Without the record, a lock
// that the run left on a state is not known to be stale.
const removeRecord = "remove it after checking that no older numaform runs; if an older numaform left a lock on a state, the next plan reports the lock and the fix"

// RelicError reports why a file of an older version cannot be migrated.
type RelicError struct{ Path, Problem, Hint string }

// Error names the file, its problem and the fix.
func (e *RelicError) Error() string { return fmt.Sprintf("file %s %s: %s", e.Path, e.Problem, e.Hint) }

// read returns the content of a relic. It returns a RelicError if the file is tracked by
// git, is not a regular file, is larger than maxState, or is reached through a link.
func (r *relic) read() (content []byte, err error) {
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := r.ordinary(root); err != nil {
		return nil, err
	}
	tracked, err := r.tracked()
	if err != nil {
		return nil, fmt.Errorf("checking whether %s is tracked by git: %w", r.path(), err)
	}
	if tracked {
		hint := "run git rm --cached on it if you trust its content; otherwise remove it, and numaform imports the VMs by their markers"
		if r.to == "" {
			hint = removeRecord
		}
		return nil, &RelicError{r.path(), "is tracked by git, so anyone who may push can replace it", hint}
	}
	file, err := root.OpenFile(filepath.FromSlash(r.name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return io.ReadAll(io.LimitReader(file, maxState))
}

// ordinary returns an error if a relic is not a regular file, is larger than maxState, or
// is reached through a link.
func (r *relic) ordinary(root *os.Root) error {
	restore := "replace it with the host's state file, or remove it, and numaform imports the VMs by their markers"
	if r.to == "" {
		restore = removeRecord
	}
	for at := ""; at != r.name; {
		next, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(r.name, at), "/"), "/")
		at = strings.TrimPrefix(at+"/"+next, "/")
		info, err := root.Lstat(filepath.FromSlash(at))
		switch {
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			return &RelicError{r.path(), "is reached through a link, " + at, restore}
		case at == r.name && !info.Mode().IsRegular():
			return &RelicError{r.path(), "is not a regular file", restore}
		case at == r.name && info.Size() > maxState:
			return &RelicError{r.path(), fmt.Sprintf("has %d bytes, more than the maximum of %d", info.Size(), maxState), restore}
		}
	}
	return nil
}

// tracked reports whether the file is in the index of its git checkout; false if it is not
// in a checkout.
func (r *relic) tracked() (bool, error) {
	dir, err := filepath.Abs(r.dir)
	if err != nil {
		return false, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return false, err
	}
	name := r.name
	for {
		git := filepath.Join(dir, ".git")
		info, err := os.Stat(git)
		if err == nil {
			if !info.IsDir() {
				// In a linked worktree, .git is a file that names the git directory.
				content, err := os.ReadFile(git)
				if err != nil {
					return false, err
				}
				to, ok := strings.CutPrefix(strings.TrimSpace(string(content)), "gitdir: ")
				if !ok {
					return false, fmt.Errorf("reading %s: it must begin with \"gitdir: \": run `git worktree repair` in the main worktree", git)
				}
				if git = to; !filepath.IsAbs(git) {
					git = filepath.Join(dir, to)
				}
			}
			return inIndex(filepath.Join(git, "index"), name)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if dir == filepath.Dir(dir) {
			return false, nil
		}
		name = filepath.Base(dir) + "/" + name
		dir = filepath.Dir(dir)
	}
}

// inIndex reports whether an index of git contains a path.
func inIndex(name, path string) (found bool, err error) {
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var content index.Index
	if err := index.NewDecoder(io.LimitReader(file, maxState)).Decode(&content); err != nil {
		return false, err
	}
	return slices.ContainsFunc(content.Entries, func(e *index.Entry) bool { return e.Name == path }), nil
}
