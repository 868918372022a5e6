package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/terraform-exec/tfexec"

	"github.com/numaform/numaform/state/guard"
)

// Init initializes the directory for the engine: backend and modules. It skips the engine's
// init if none of its inputs has changed. Operations that need an initialized directory
// initialize it themselves.
func (w *Workspace) Init(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.prepare(ctx)
}

// prepare opens and initializes the workspace. The caller holds mu.
func (w *Workspace) prepare(ctx context.Context) error {
	if err := w.open(ctx); err != nil {
		return err
	}
	failed := func(err error) error { return fmt.Errorf("initializing %s: %w", w.config.Dir, err) }
	root, err := readConfiguration(w.config.Dir)
	if err != nil {
		return failed(err)
	}
	w.root = root
	if root.refused != nil {
		return failed(root.refused)
	}
	if err := w.restrict(); err != nil {
		return failed(err)
	}

	// The stamp is the hash of everything that init depends on, except module calls that
	// addCalls lists.
	lines := []string{
		"engine " + w.config.Engine.Path + " " + w.config.Engine.Version,
		"providers none",
	}
	for key, value := range w.config.BackendConfig {
		lines = append(lines, "backend "+key+"="+value)
	}
	for _, line := range root.dependencies {
		if !root.local || !strings.HasPrefix(line, callPrefix) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	hash := hashLines(lines)
	stamp, err := os.ReadFile(w.private(stampFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return failed(err)
	}
	if string(stamp) == hash && (!root.local || w.addCalls(root)) {
		return nil
	}
	if err := w.init(ctx); err != nil {
		return err
	}
	if err := renameio.WriteFile(w.private(stampFile), []byte(hash), 0o600); err != nil {
		return failed(err)
	}
	return nil
}

func hashLines(lines []string) string {
	hash := sha256.New()
	for _, line := range lines {
		fmt.Fprintf(hash, "%d %s\n", len(line), line)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// providerLock is the engine's file of provider versions and hashes. It is removed:
// Providers decides which provider may run.
const providerLock = ".terraform.lock.hcl"

// init runs the engine's init, and repeats it if it fails because another client uses the
// backend for the first time at the same moment, or holds the lock. The engine gets no
// provider: it finds none in the directory and has no source to install one from.
func (w *Workspace) init(ctx context.Context) error {
	if err := w.follow(); err != nil {
		return err
	}
	nothing := w.private("no-providers")
	err := errors.Join(os.RemoveAll(filepath.Join(w.config.Dir, ".terraform", "providers")), os.RemoveAll(nothing),
		removeFile(filepath.Join(w.config.Dir, providerLock)))
	if err == nil {
		err = os.Mkdir(nothing, 0o700)
	}
	if err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	for range firstUses {
		w.begun = w.config.Clock.Now()
		err = w.command(ctx, "initializing", func(tf *tfexec.Terraform) error {
			return tf.Init(ctx, w.initOptions(nothing)...)
		})
		var locked *LockedError
		if err == nil || !errors.As(err, &locked) && !clashed.MatchString(strings.Join(strings.Fields(err.Error()), " ")) {
			return err
		}
		select {
		case <-w.config.Clock.After(firstUse):
		case <-ctx.Done():
			return err
		}
	}
	return err
}

// clashed matches the errors of an init that runs at the same time as another client's
// first use of the backend. PostgreSQL's CREATE ... IF NOT EXISTS is not safe under
// concurrency. In Kubernetes, init creates the state, with a lock that it does not wait
// for.
var clashed = regexp.MustCompile(`pq: (duplicate key value violates unique constraint "pg_|(schema|relation|type) \S+ already exists)|` +
	`(secrets|leases\.coordination\.k8s\.io) \S+ already exists|the object has been modified`)

// firstUse is the delay after an init that failed because of a lock or another client, and
// firstUses is the number of attempts.
const (
	firstUse  = 500 * time.Millisecond
	firstUses = 10
)

// initOptions returns the options of init. A changed backend is never reconfigured,
// because the states would remain in the old one: the engine refuses and reports it.
func (w *Workspace) initOptions(plugins string) []tfexec.InitOption {
	options := []tfexec.InitOption{tfexec.Upgrade(false), tfexec.PluginDir(plugins)}
	if w.root.version != "" {
		// Init neither installs nor calls a provider that is already running, so the
		// address need not work.
		options = append(options, tfexec.Reattach(tfexec.ReattachInfo{guard.Provider: {
			Protocol: "grpc", ProtocolVersion: 6, Pid: os.Getpid(), Test: true,
			Addr: tfexec.ReattachConfigAddr{Network: "unix", String: os.DevNull},
		}}))
	}
	for _, key := range slices.Sorted(maps.Keys(w.config.BackendConfig)) {
		options = append(options, tfexec.BackendConfig(key+"="+w.config.BackendConfig[key]))
	}
	return options
}

// engineData returns the file in which the engine records the directory's backend.
func (w *Workspace) engineData() string {
	return filepath.Join(w.config.Dir, ".terraform", "terraform.tfstate")
}

// MovedStateError reports that the configured path of a local state has changed while the
// old file still exists.
type MovedStateError struct{ Dir, Was, Wanted string }

// Error names both paths and the fix.
func (e *MovedStateError) Error() string {
	return fmt.Sprintf("state of %s: its file was %s and is now configured as %s, but the old file still exists: if the fleet was copied, "+
		"use only one of the copies and remove the other; if the state should move, move the old file to the new path", e.Dir, e.Was, e.Wanted)
}

// follow drops the engine's record of a local state's path if the configured path
// differs, because the fleet and its states were moved: the engine would refuse, as it
// does for any changed backend. If another file remains at the old path, follow returns a
// *MovedStateError.
func (w *Workspace) follow() error {
	configured := w.config.BackendConfig["path"]
	if configured == "" || w.root.backend != "local" {
		return nil
	}
	content, err := os.ReadFile(w.engineData())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	var data struct {
		Backend struct {
			Type   string `json:"type"`
			Config struct {
				Path string `json:"path"`
			} `json:"config"`
		} `json:"backend"`
	}
	// The engine reports unreadable data.
	if json.Unmarshal(content, &data) != nil || data.Backend.Type != "local" || data.Backend.Config.Path == "" {
		return nil //nolint:nilerr // see above
	}
	was := data.Backend.Config.Path
	if !filepath.IsAbs(was) {
		was = filepath.Join(w.config.Dir, was)
	}
	if was == configured {
		return nil
	}
	if old, err := os.Stat(was); err == nil {
		if current, err := os.Stat(configured); err != nil || !os.SameFile(old, current) {
			return &MovedStateError{Dir: w.config.Dir, Was: was, Wanted: configured}
		}
	}
	if err := removeFile(w.engineData()); err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	return nil
}
