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
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/state/guard"
)

// Providers decides which provider programs may run, by the hashes of their files. If
// Pinned is set, only those hashes may run. Otherwise only the image's provider may run
// or, if the image has none, the first one used: Record stores its hash, and another one
// of the same version is refused from then on.
type Providers struct {
	// Record is the file that stores the hashes of providers in use, outside any fleet.
	// Without it, no provider may run on first use.
	Record string
	// Dir stores copies of providers that were downloaded, or that others can replace in
	// their original place.
	Dir string
	// Image is the file that lists an image's providers; it may be missing.
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
	// Trust says why it may run.
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
	// Trusted are the hashes that may run; By says who allows them.
	Trusted []string
	By      string
}

// Error says which provider was refused, and how to fix it.
func (e *ProviderError) Error() string {
	return fmt.Sprintf("provider %s %s in %s has hash %s, and %s %s: it was not started; "+
		"find out who replaced it, or, if you did, add the hash to engine.provider_hashes in numaform.yaml",
		e.Address, e.Version, e.Dir, e.Hash, e.By, strings.Join(e.Trusted, ", "))
}

// seen is a provider in the record.
type seen struct {
	Address  string    `json:"address"`
	Version  string    `json:"version"`
	Platform string    `json:"platform"`
	Hash     string    `json:"hash"`
	Since    time.Time `json:"since,omitzero"`
}

// record is the content of the files Record and Image.
type record struct {
	Providers []seen `json:"providers"`
}

func (r *record) find(version string) *seen {
	for i, s := range r.Providers {
		if s.Address == guard.Provider && s.Version == version && s.Platform == platform() {
			return &r.Providers[i]
		}
	}
	return nil
}

func platform() string { return runtime.GOOS + "_" + runtime.GOARCH }

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
		return record{}, fmt.Errorf("reading the trusted providers %s: %w: restore the file, or pin the provider in engine.provider_hashes and remove the file", name, err)
	}
	return r, nil
}

// trust returns the provider in a directory with the reason why it may run, and records
// it on first use; otherwise it returns a *ProviderError.
func (p *Providers) trust(version, dir, hash string, now time.Time) (*Provider, error) {
	provider := &Provider{Address: guard.Provider, Version: version, Hash: hash}
	if p == nil {
		provider.Trust = "not remembered"
		return provider, nil
	}
	by, trusted, err := p.verdict(provider, now)
	if err == nil && by != "" {
		err = &ProviderError{Address: guard.Provider, Version: version, Dir: dir, Hash: hash, By: by, Trusted: trusted}
	}
	if err != nil {
		return nil, err
	}
	return provider, nil
}

// verdict sets the reason why a provider may run, or returns which other hashes are
// allowed, and by whom.
func (p *Providers) verdict(provider *Provider, now time.Time) (by string, trusted []string, err error) {
	pinned := len(p.Pinned) > 0
	if pinned && !slices.Contains(p.Pinned, provider.Hash) {
		return "engine.provider_hashes allows only", p.Pinned, nil
	}
	carried, err := readRecord(p.Image)
	if err != nil {
		return "", nil, err
	}
	switch image := carried.find(provider.Version); {
	case image == nil:
	case image.Hash == provider.Hash:
		provider.Trust = "carried by the image"
		return "", nil, nil
	case !pinned:
		return "the image carries", []string{image.Hash}, nil
	}
	return p.firstUse(provider, now)
}

// firstUse compares a provider with the first one used of its version. A pinned hash
// replaces the first.
func (p *Providers) firstUse(provider *Provider, now time.Time) (by string, trusted []string, err error) {
	first, err := p.remember(provider, now)
	if err != nil {
		return "", nil, err
	}
	since := first.Since.UTC().Format(time.DateOnly)
	switch {
	case len(p.Pinned) > 0:
		provider.Trust = "pinned by engine.provider_hashes"
	case first.Hash != provider.Hash:
		return "since " + since + " numaform runs", []string{first.Hash}, nil
	case first.Since.Equal(now):
		provider.First = true
		provider.Trust = "trusted on first use: compare the hash with the one that you expect"
	default:
		provider.Trust = "trusted since " + since
	}
	return "", nil, nil
}

// remember returns the record of a provider's version, and creates it if there is none.
// The operator's pinned hash replaces it.
func (p *Providers) remember(provider *Provider, now time.Time) (seen, error) {
	if p.Record == "" && len(p.Pinned) > 0 {
		return seen{}, nil
	}
	if p.Record == "" {
		return seen{}, fmt.Errorf("remembering provider %s: there is no state directory: set state_dir in numaform.yaml, or the variable HOME", provider.Address)
	}
	lock, err := p.lock()
	if err != nil {
		return seen{}, err
	}
	defer lock.Close() //nolint:errcheck // it only holds a lock
	r, err := readRecord(p.Record)
	if err != nil {
		return seen{}, err
	}
	known := r.find(provider.Version)
	if known != nil && (known.Hash == provider.Hash || len(p.Pinned) == 0) {
		return *known, nil
	}
	if known == nil {
		r.Providers = append(r.Providers, seen{})
		known = &r.Providers[len(r.Providers)-1]
	}
	*known = seen{Address: provider.Address, Version: provider.Version, Platform: platform(), Hash: provider.Hash, Since: now}
	return *known, p.write(r)
}

// write writes the record.
func (p *Providers) write(r record) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = renameio.WriteFile(p.Record, append(content, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("remembering providers in %s: %w", p.Record, err)
	}
	return nil
}

// lock locks the record against other processes.
func (p *Providers) lock() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(p.Record), 0o700); err != nil {
		return nil, fmt.Errorf("locking the trusted providers: %w", err)
	}
	lock, err := os.OpenFile(p.Record+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the trusted providers: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking the trusted providers: %w", err), lock.Close())
	}
	return lock, nil
}

// kept returns the copy of a provider that may run, or "".
func (p *Providers) kept(version string) (string, error) {
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
	return filepath.Join(p.Dir, "proxmox_"+version+"_"+platform()+"_"+strings.NewReplacer("/", "_", ":", "_", "+", "-").Replace(hash))
}

// keep copies a provider's files to a directory that only this user can change.
func (p *Providers) keep(e *Engine, version, dir string) (string, error) {
	if p == nil || p.Dir == "" {
		return "", fmt.Errorf("provider %s in %s may be replaced by others, and there is no directory of our own to copy it to: set state_dir in numaform.yaml", guard.Provider, dir)
	}
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return "", fmt.Errorf("copying provider %s: %w", guard.Provider, err)
	}
	temporary, err := os.MkdirTemp(p.Dir, ".copy-")
	if err != nil {
		return "", fmt.Errorf("copying provider %s: %w", guard.Provider, err)
	}
	defer os.RemoveAll(temporary) //nolint:errcheck // it may have been renamed
	if err := os.CopyFS(temporary, os.DirFS(dir)); err != nil {
		return "", fmt.Errorf("copying provider %s: %w", guard.Provider, err)
	}
	hash, err := e.sum(temporary, "", time.Time{})
	if err != nil {
		return "", fmt.Errorf("hashing provider %s: %w", guard.Provider, err)
	}
	target := p.copyOf(version, hash)
	if err := os.Rename(temporary, target); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return "", fmt.Errorf("copying provider %s: %w", guard.Provider, err)
	}
	return target, nil
}

// sums returns the file that stores the last hash, or "".
func (p *Providers) sums() string {
	if p == nil || p.Record == "" {
		return ""
	}
	return p.Record + ".sum"
}

// program returns the program of the provider that the files require. Only root and this
// user can change it, and its hash was computed in that place.
func (w *Workspace) program(ctx context.Context) (string, *Provider, error) {
	dir, err := w.installed(ctx)
	if err != nil {
		return "", nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", nil, fmt.Errorf("looking for provider %s: %w", guard.Provider, err)
	}
	programs, err := filepath.Glob(filepath.Join(dir, "terraform-provider-*"))
	if err != nil || len(programs) != 1 {
		return "", nil, fmt.Errorf("looking for provider %s: %d programs in %s, want one", guard.Provider, len(programs), dir)
	}
	if !guarded(dir) || !guarded(programs[0]) {
		if dir, err = w.config.Providers.keep(w.config.Engine, w.version, dir); err != nil {
			return "", nil, err
		}
	}
	now := w.config.Clock.Now()
	sum, err := w.config.Engine.sum(dir, w.config.Providers.sums(), now)
	if err != nil {
		return "", nil, fmt.Errorf("hashing provider %s: %w", guard.Provider, err)
	}
	provider, err := w.config.Providers.trust(w.version, dir, sum, now)
	return filepath.Join(dir, filepath.Base(programs[0])), provider, err
}

// installed returns the directory of the provider's files: in the mirror, among the
// copies, or downloaded.
func (w *Workspace) installed(ctx context.Context) (string, error) {
	if w.config.PluginDir != "" {
		mirrored := filepath.Join(w.config.PluginDir, filepath.FromSlash(guard.Provider), w.version, platform())
		if exists(mirrored) {
			return mirrored, nil
		}
	}
	if dir, err := w.config.Providers.kept(w.version); dir != "" || err != nil {
		return dir, err
	}
	return w.download(ctx)
}

// downloading is the operation of a download, for errors.
const downloading = "downloading the provider for"

// download makes the engine install the provider in a temporary directory, from the
// registry or a mirror of packed providers, and copies it.
func (w *Workspace) download(ctx context.Context) (kept string, err error) {
	dir, err := os.MkdirTemp(w.private(), "download-")
	if err != nil {
		return "", fmt.Errorf("downloading provider %s: %w", guard.Provider, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root := fmt.Sprintf("terraform {\n  required_providers {\n    proxmox = {\n      source  = %q\n      version = %q\n    }\n  }\n}\n", guard.Provider, w.version)
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(root), 0o600); err != nil {
		return "", fmt.Errorf("downloading provider %s: %w", guard.Provider, err)
	}
	client, err := tfexec.NewTerraform(dir, w.config.Engine.Path)
	if err == nil {
		err = client.SetEnv(w.env.download)
	}
	if err != nil {
		return "", fmt.Errorf("downloading provider %s: %w", guard.Provider, err)
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
	return w.config.Providers.keep(w.config.Engine, w.version,
		filepath.Join(dir, ".terraform", "providers", filepath.FromSlash(guard.Provider), w.version, platform()))
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
