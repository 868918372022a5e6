package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/terraform-exec/tfexec"

	"github.com/numaform/numaform/state/guard"
)

// Init initializes the directory for the engine: backend, providers, modules. It does
// nothing if none of them has changed, so it is cheap to call before each plan; Plan and
// Recover call it themselves.
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
	files, err := configFiles(w.config.Dir)
	if err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	w.version, err = required(files)
	if err == nil {
		err = w.restrict(files)
	}
	if err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	now := w.fingerprint(files)
	done, err := readFingerprint(w.private(stampFile))
	if err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	switch {
	case done == now:
		return nil
	case done.rest == now.rest && w.addCalls(files):
		// A changed number of calls to modules that are already listed needs no init.
	default:
		if err := w.init(ctx); err != nil {
			return err
		}
	}
	if err := renameio.WriteFile(w.private(stampFile), []byte(now.String()), 0o600); err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	return nil
}

// init runs the engine's init. The engine gets no provider: it finds none in the
// directory and has no source to install one from.
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
		_, err = w.command(ctx, "initializing", true, func(tf *tfexec.Terraform) error {
			return tf.Init(ctx, initOptions(w.config, nothing, w.version)...)
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

// clashed matches how init fails on a backend that another client uses for the first
// time at the same moment. CREATE ... IF NOT EXISTS of PostgreSQL is not safe against
// itself. In Kubernetes, init creates the state, with a lock that it does not wait for.
var clashed = regexp.MustCompile(`pq: (duplicate key value violates unique constraint "pg_|(schema|relation|type) \S+ already exists)|` +
	`(secrets|leases\.coordination\.k8s\.io) \S+ already exists|the object has been modified`)

// firstUse is how long to wait for that client, and firstUses how often to try.
const (
	firstUse  = 500 * time.Millisecond
	firstUses = 10
)

// initOptions returns the options of init. A changed backend is never reconfigured,
// because the states would remain in the old one: the engine refuses and reports it.
func initOptions(c Config, plugins, version string) []tfexec.InitOption {
	options := []tfexec.InitOption{tfexec.Upgrade(false), tfexec.PluginDir(plugins)}
	if version != "" {
		// Init does not call a provider that is already running.
		options = append(options, tfexec.Reattach(tfexec.ReattachInfo{guard.Provider: {
			Protocol: string(plugin.ProtocolGRPC), ProtocolVersion: 6, Pid: os.Getpid(), Test: true,
			Addr: tfexec.ReattachConfigAddr{Network: "unix", String: os.DevNull},
		}}))
	}
	for _, key := range slices.Sorted(maps.Keys(c.BackendConfig)) {
		options = append(options, tfexec.BackendConfig(key+"="+c.BackendConfig[key]))
	}
	return options
}

// fingerprint is the hash of everything that init depends on, and the hash of all of it
// except module calls.
type fingerprint struct{ whole, rest string }

// String returns the content of the stamp file.
func (f fingerprint) String() string { return f.whole + " " + f.rest }

// readFingerprint reads a stamp. An invalid stamp equals no fingerprint.
func readFingerprint(name string) (fingerprint, error) {
	stamp, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fingerprint{}, err
	}
	whole, rest, _ := strings.Cut(string(stamp), " ")
	return fingerprint{whole, rest}, nil
}

// fingerprint hashes what init depends on.
func (w *Workspace) fingerprint(files map[string][]byte) fingerprint {
	lines := []string{
		"engine " + w.config.Engine.Path + " " + w.config.Engine.Version,
		"providers none",
	}
	for key, value := range w.config.BackendConfig {
		lines = append(lines, "backend "+key+"="+value)
	}
	for name, content := range files {
		lines = append(lines, dependencies(name, content)...)
	}
	slices.Sort(lines)
	whole := hashLines(lines)
	return fingerprint{whole, hashLines(slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, callPrefix) }))}
}

// callPrefix starts the dependency lines about module calls.
const callPrefix = "module "

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

// configFiles reads the .tf files of a directory.
func configFiles(dir string) (map[string][]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".tf") && !strings.HasSuffix(name, ".tf.json") && !strings.HasSuffix(name, ".tofu") {
			continue
		}
		if files[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// dependencies returns the parts of a file on which init depends: its terraform blocks,
// and the label, source and version of each module call. If a file is not plain HCL, the
// whole file counts.
func dependencies(name string, content []byte) []string {
	whole := []string{"file " + name + " " + string(content)}
	if !strings.HasSuffix(name, ".tf") {
		return whole
	}
	file, diagnostics := hclsyntax.ParseConfig(content, name, hcl.InitialPos)
	if diagnostics.HasErrors() {
		return whole
	}
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok {
		return whole
	}
	var found []string
	for _, block := range body.Blocks {
		switch block.Type {
		case "terraform":
			found = append(found, "terraform "+string(block.Range().SliceBytes(content))+blockText(block, content))
		case "module":
			found = append(found, callPrefix+strings.Join(block.Labels, ".")+" "+
				attributeText(block, "source", content)+" "+attributeText(block, "version", content))
		case "resource", "data", "ephemeral":
			// The type identifies the provider.
			found = append(found, block.Type+" "+strings.Join(block.Labels, "."))
		}
	}
	return found
}

func blockText(block *hclsyntax.Block, content []byte) string {
	return string(hcl.RangeBetween(block.OpenBraceRange, block.CloseBraceRange).SliceBytes(content))
}

func attributeText(block *hclsyntax.Block, name string, content []byte) string {
	attribute, ok := block.Body.Attributes[name]
	if !ok {
		return ""
	}
	return string(attribute.Expr.Range().SliceBytes(content))
}
