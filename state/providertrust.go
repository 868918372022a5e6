package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/terraform-exec/tfexec"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/state/guard"
)

// Providers decides which provider programs may run, by the hashes of their files. If
// Pinned is set, only those hashes may run. Otherwise, of each version, only the image's
// provider may run or, if the image has none, the first one used: Record stores its hash,
// and any other is refused from then on.
type Providers struct {
	// Record is the file that stores the hashes of providers in use, outside any fleet.
	// Without it, only pinned providers and the image's may run.
	Record string
	// Dir stores copies of providers that were downloaded, or that other users can
	// replace in their original place.
	Dir string
	// Image is the file that lists the providers of a container image; it can be missing.
	Image string
	// Pinned are the hashes that the operator allows.
	Pinned []string
}

// Provider is a provider that may run.
type Provider struct {
	Address string `json:"address"`
	Version string `json:"version"`
	// Hash is the hash of its files, as in the engine's lock files.
	Hash string `json:"hash"`
	// Trust is the reason why it may run.
	Trust string `json:"trust"`
	// First is set if it is trusted only because this is its first use.
	First bool `json:"-"`
}

// String returns the provider, and why it may run.
func (p *Provider) String() string {
	return fmt.Sprintf("%s %s %s (%s)", p.Address, p.Version, p.Hash, p.Trust)
}

// ProviderError reports that a provider may not run.
type ProviderError struct {
	Address, Version, Dir, Hash string
	// Trusted are the hashes that may run; By is the text that precedes them in the
	// message, such as "engine.provider_hashes allows only".
	Trusted []string
	By      string
}

// Error names the refused provider and the fix.
func (e *ProviderError) Error() string {
	return fmt.Sprintf("provider %s %s in %s has hash %s, but %s %s: numaform did not start it; "+
		"find out who replaced it, or, if you did, add the hash to engine.provider_hashes in numaform.yaml",
		e.Address, e.Version, e.Dir, e.Hash, e.By, strings.Join(e.Trusted, ", "))
}

// record is the content of the files Providers.Record and Providers.Image.
type record struct {
	Providers []recorded `json:"providers"`
}

// recorded is a provider in a record.
type recorded struct {
	Address  string    `json:"address"`
	Version  string    `json:"version"`
	Platform string    `json:"platform"`
	Hash     string    `json:"hash"`
	Since    time.Time `json:"since,omitzero"`
}

// find returns the record of a version of the provider on this platform, or nil.
func (r *record) find(version string) *recorded {
	i := slices.IndexFunc(r.Providers, func(p recorded) bool {
		return p.Address == guard.Provider && p.Version == version && p.Platform == platform
	})
	if i < 0 {
		return nil
	}
	return &r.Providers[i]
}

const platform = runtime.GOOS + "_" + runtime.GOARCH

// readRecord reads a record. A missing file is an empty record.
func readRecord(name string) (record, error) {
	content, err := os.ReadFile(name)
	if name == "" || errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	var r record
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("reading the trusted providers in %s: %w: restore the file, or pin the provider in engine.provider_hashes and remove the file", name, err)
	}
	return r, nil
}

// trust returns the provider in a directory with the reason why it may run, and records a
// first use. It returns a *ProviderError if the provider may not run. If p is nil, every
// provider may run.
func (p *Providers) trust(version, dir, hash string, now time.Time) (*Provider, error) {
	provider := &Provider{Address: guard.Provider, Version: version, Hash: hash}
	if p == nil {
		provider.Trust = "not recorded"
		return provider, nil
	}
	refused := func(by string, trusted ...string) error {
		return &ProviderError{Address: guard.Provider, Version: version, Dir: dir, Hash: hash, By: by, Trusted: trusted}
	}
	pinned := len(p.Pinned) > 0
	if pinned && !slices.Contains(p.Pinned, hash) {
		return nil, refused("engine.provider_hashes allows only", p.Pinned...)
	}

	image, err := readRecord(p.Image)
	if err != nil {
		return nil, err
	}
	if carried := image.find(version); carried != nil {
		if carried.Hash == hash {
			provider.Trust = "from the image"
			return provider, nil
		}
		if !pinned {
			return nil, refused("the image contains", carried.Hash)
		}
	}

	first, err := p.remember(version, hash, now)
	if err != nil {
		return nil, err
	}
	since := first.Since.UTC().Format(time.DateOnly)
	switch {
	case pinned:
		provider.Trust = "pinned by engine.provider_hashes"
	case first.Hash != hash:
		return nil, refused("since "+since+" numaform has trusted", first.Hash)
	case first.Since.Equal(now):
		provider.First = true
		provider.Trust = "trusted on first use: to verify the hash, compare it with .terraform.lock.hcl of another project that uses this version, " +
			"or with providers.json in the state directory of another machine"
	default:
		provider.Trust = "trusted since " + since
	}
	return provider, nil
}

// remember returns the record of the first use of a version, and creates it if there is
// none. A pinned hash replaces another one in the record. With pinned hashes and no file
// for records, it returns an empty record.
func (p *Providers) remember(version, hash string, now time.Time) (first recorded, err error) {
	pinned := len(p.Pinned) > 0
	if p.Record == "" && pinned {
		return recorded{}, nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("recording provider %s: %w", guard.Provider, err)
		}
	}()
	if p.Record == "" {
		return recorded{}, errors.New("no state directory: set state_dir in numaform.yaml, or set the environment variable HOME")
	}

	// Other processes use the same record.
	if err := os.MkdirAll(filepath.Dir(p.Record), 0o700); err != nil {
		return recorded{}, err
	}
	lock, err := os.OpenFile(p.Record+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return recorded{}, err
	}
	defer lock.Close() //nolint:errcheck // it only holds a lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return recorded{}, err
	}

	r, err := readRecord(p.Record)
	if err != nil {
		return recorded{}, err
	}
	known := r.find(version)
	if known != nil && (known.Hash == hash || !pinned) {
		return *known, nil
	}
	first = recorded{Address: guard.Provider, Version: version, Platform: platform, Hash: hash, Since: now}
	if known != nil {
		*known = first
	} else {
		r.Providers = append(r.Providers, first)
	}
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return recorded{}, err
	}
	return first, renameio.WriteFile(p.Record, append(content, '\n'), 0o600)
}

// findCopy returns the directory of a copy of a provider that may run, or "" if there is
// none.
func (p *Providers) findCopy(version string) (string, error) {
	if p == nil {
		return "", nil
	}
	hashes := p.Pinned
	if len(hashes) == 0 {
		r, err := readRecord(p.Record)
		if err != nil {
			return "", err
		}
		if known := r.find(version); known != nil {
			hashes = []string{known.Hash}
		}
	}
	for _, hash := range hashes {
		if dir := p.copyOf(version, hash); exists(dir) {
			return dir, nil
		}
	}
	return "", nil
}

// copyOf returns the path of the copy with a hash.
func (p *Providers) copyOf(version, hash string) string {
	return filepath.Join(p.Dir, "proxmox_"+version+"_"+platform+"_"+strings.NewReplacer("/", "_", ":", "_", "+", "-").Replace(hash))
}

// copy copies a provider's files to a directory that only this user can change.
func (p *Providers) copy(version, dir string) (target string, err error) {
	if p == nil || p.Dir == "" {
		return "", fmt.Errorf("copying provider %s from %s: no state directory: set state_dir in numaform.yaml, or set the environment variable HOME", guard.Provider, dir)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("copying provider %s: %w", guard.Provider, err)
		}
	}()
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return "", err
	}
	temporary, err := os.MkdirTemp(p.Dir, ".copy-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temporary) //nolint:errcheck // it may have been renamed
	if err := os.CopyFS(temporary, os.DirFS(dir)); err != nil {
		return "", err
	}
	hash, err := dirhash.HashDir(temporary, "", dirhash.Hash1)
	if err != nil {
		return "", err
	}
	target = p.copyOf(version, hash)
	if err := os.Rename(temporary, target); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return "", err
	}
	return target, nil
}

// program returns the path of the program of the provider that the files require. Only root
// and this user can change the file, so the hash that was checked remains valid.
func (w *Workspace) program(ctx context.Context) (string, *Provider, error) {
	version := w.root.version
	dir, err := w.installed(ctx, version)
	if err != nil {
		return "", nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", nil, fmt.Errorf("looking for provider %s: %w", guard.Provider, err)
	}
	programs, err := filepath.Glob(filepath.Join(dir, "terraform-provider-*"))
	if err != nil || len(programs) != 1 {
		return "", nil, fmt.Errorf("looking for provider %s: %d files terraform-provider-* in %s: must be exactly one; remove the extra ones, or install the provider again", guard.Provider, len(programs), dir)
	}
	if !guarded(dir) || !guarded(programs[0]) {
		if dir, err = w.config.Providers.copy(version, dir); err != nil {
			return "", nil, err
		}
	}
	sums := "" // the file that stores the last hash
	if p := w.config.Providers; p != nil && p.Record != "" {
		sums = p.Record + ".sum"
	}
	now := w.config.Clock.Now()
	hash, err := hashOf(dir, sums, now)
	if err != nil {
		return "", nil, fmt.Errorf("hashing provider %s: %w", guard.Provider, err)
	}
	provider, err := w.config.Providers.trust(version, dir, hash, now)
	return filepath.Join(dir, filepath.Base(programs[0])), provider, err
}

// installed returns the directory of the provider's files: in the mirror, among the
// copies, or downloaded.
func (w *Workspace) installed(ctx context.Context, version string) (string, error) {
	if w.config.PluginDir != "" {
		mirrored := filepath.Join(w.config.PluginDir, filepath.FromSlash(guard.Provider), version, platform)
		if exists(mirrored) {
			return mirrored, nil
		}
	}
	if dir, err := w.config.Providers.findCopy(version); dir != "" || err != nil {
		return dir, err
	}
	return w.download(ctx, version)
}

// downloading is the operation of a download, for errors.
const downloading = "downloading the provider for"

// download makes the engine install the provider in a temporary directory, from the
// registry or a mirror of packed providers, and copies it.
func (w *Workspace) download(ctx context.Context, version string) (target string, err error) {
	dir, err := os.MkdirTemp(w.private(), "download-")
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", downloading, w.config.Dir, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root := fmt.Sprintf("terraform {\n  required_providers {\n    proxmox = {\n      source  = %q\n      version = %q\n    }\n  }\n}\n", guard.Provider, version)
	err = os.WriteFile(filepath.Join(dir, "main.tf"), []byte(root), 0o600)
	var client *tfexec.Terraform
	if err == nil {
		client, err = tfexec.NewTerraform(dir, w.config.Engine.Path)
	}
	if err == nil {
		err = client.SetEnv(w.env.download)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", downloading, w.config.Dir, err)
	}
	said := &output{}
	client.SetStderr(&said.stderr)
	options := []tfexec.InitOption{tfexec.Backend(false), tfexec.Upgrade(false)}
	if w.config.PluginDir != "" {
		options = append(options, tfexec.PluginDir(w.config.PluginDir))
	}
	if err := client.Init(ctx, options...); err != nil {
		return "", w.failure(ctx, downloading, err, said.said())
	}
	return w.config.Providers.copy(version,
		filepath.Join(dir, ".terraform", "providers", filepath.FromSlash(guard.Provider), version, platform))
}

// storedHash is the hash of a provider's files, with the states of the files from which it
// was computed.
type storedHash struct {
	Files string `json:"files"`
	Hash  string `json:"hash"`
}

// hashOf returns the hash of a provider's files, as in lock files. Because computing the
// hash takes 2 % of a plan's CPU time, it is stored at the path file, unless that is "",
// and recomputed only after one of the provider's files has changed.
func hashOf(dir, file string, now time.Time) (string, error) {
	states, newest, err := fileStates(dir)
	if err != nil {
		return "", err
	}
	var stored storedHash
	content, err := os.ReadFile(file)
	if err == nil && json.Unmarshal(content, &stored) == nil && stored.Files == states {
		return stored.Hash, nil
	}
	hash, err := dirhash.HashDir(dir, "", dirhash.Hash1)
	if err != nil {
		return "", err
	}
	// A recently written file may change again without a new modification time.
	if file != "" && now.Sub(newest) > 2*time.Second {
		if content, err = json.Marshal(storedHash{Files: states, Hash: hash}); err == nil {
			_ = renameio.WriteFile(file, content, 0o600) // the next process recomputes it
		}
	}
	return hash, nil
}

// fileStates returns a text that changes if a file in a directory changes, and the time of
// the last change.
func fileStates(dir string) (text string, newest time.Time, err error) {
	var b strings.Builder
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(name, &stat); err != nil {
			return err
		}
		// The owner can reset a file's mtime, but not its ctime.
		fmt.Fprintf(&b, "%s %d %s %d %d %v %v\n", name, info.Size(), info.Mode(), stat.Dev, stat.Ino, stat.Mtim, stat.Ctim)
		if changed := time.Unix(stat.Ctim.Unix()); changed.After(newest) {
			newest = changed
		}
		return nil
	})
	return b.String(), newest, err
}

// guarded reports whether only root and this user can change or replace a file or
// directory.
func guarded(path string) bool {
	for {
		var stat unix.Stat_t
		if unix.Lstat(path, &stat) != nil {
			return false
		}
		own := stat.Uid == 0 || stat.Uid == uint32(os.Getuid()) //nolint:gosec // a user ID
		shared := stat.Mode&0o022 != 0 && stat.Mode&unix.S_ISVTX == 0
		if !own || shared || stat.Mode&unix.S_IFMT == unix.S_IFLNK {
			return false
		}
		parent := filepath.Dir(path)
		if parent == path {
			return true
		}
		path = parent
	}
}
