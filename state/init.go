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
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/terraform-exec/tfexec"
)

// Init prepares the directory for the engine: backend, providers, modules. A
// directory in which none of them changed since is left alone, so it costs
// nothing to call it before each plan; Plan and Recover do so themselves.
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
	now := w.fingerprint(files)
	stamp, err := os.ReadFile(w.private(stampFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	switch done := parseFingerprint(stamp); {
	case done == now:
		return nil
	case done.rest == now.rest && w.addCalls(files):
		// More or fewer calls of modules that are there already need no init.
	default:
		if err := w.init(ctx, files); err != nil {
			return err
		}
		// Init may have written the lock file of the providers.
		if files, err = configFiles(w.config.Dir); err != nil {
			return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
		}
		now = w.fingerprint(files)
	}
	if err := renameio.WriteFile(w.private(stampFile), []byte(now.String()), 0o600); err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	return nil
}

// init runs the engine's init.
func (w *Workspace) init(ctx context.Context, files map[string][]byte) error {
	if err := w.follow(); err != nil {
		return err
	}
	_, err := w.command(ctx, "initializing", true, func(tf *tfexec.Terraform) error {
		return tf.Init(ctx, initOptions(w.config, moved(files))...)
	})
	return err
}

// initOptions are the options of init. A changed backend is never reconfigured:
// the states would stay behind in the old one, so the engine refuses and says so.
// A provider is taken as the lock file has it, unless the files moved to another.
func initOptions(c Config, upgrade bool) []tfexec.InitOption {
	options := []tfexec.InitOption{tfexec.Upgrade(upgrade)}
	if c.PluginDir != "" {
		options = append(options, tfexec.PluginDir(c.PluginDir))
	}
	for _, key := range slices.Sorted(maps.Keys(c.BackendConfig)) {
		options = append(options, tfexec.BackendConfig(key+"="+c.BackendConfig[key]))
	}
	return options
}

// fingerprint is the hash of everything that init depends on, and of all of it but
// the calls of modules.
type fingerprint struct{ whole, rest string }

// String is what stands in the stamp.
func (f fingerprint) String() string { return f.whole + " " + f.rest }

// parseFingerprint reads a stamp; what is none equals no fingerprint.
func parseFingerprint(stamp []byte) fingerprint {
	whole, rest, _ := strings.Cut(string(stamp), " ")
	return fingerprint{whole, rest}
}

// fingerprint hashes what init depends on.
func (w *Workspace) fingerprint(files map[string][]byte) fingerprint {
	lines := []string{
		"engine " + w.config.Engine.Path + " " + w.config.Engine.Version,
		"plugins " + w.config.PluginDir,
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

// callPrefix begins the lines that tell of module calls.
const callPrefix = "module "

func hashLines(lines []string) string {
	hash := sha256.New()
	for _, line := range lines {
		fmt.Fprintf(hash, "%d %s\n", len(line), line)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// providerLock is the file that holds the providers' versions and hashes.
const providerLock = ".terraform.lock.hcl"

// configFiles reads the .tf files of a directory and its provider lock file.
func configFiles(dir string) (map[string][]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".tf") && !strings.HasSuffix(name, ".tf.json") &&
			!strings.HasSuffix(name, ".tofu") && name != providerLock {
			continue
		}
		if files[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// dependencies returns what init must know of a file: its terraform blocks, and
// of each module call label, source and version. A file that is not plain HCL
// counts as a whole.
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
			// The type names the provider.
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
