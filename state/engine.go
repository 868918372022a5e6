package state

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/hc-install/fs"
	"github.com/hashicorp/hc-install/product"
	"github.com/hashicorp/terraform-exec/tfexec"
)

// DefaultVersion is the constraint on the engine if none is configured.
const DefaultVersion = ">= 1.8"

// engineTimeout is how long one binary may take to say its version.
const engineTimeout = 30 * time.Second

// EngineConfig says which engine to use.
type EngineConfig struct {
	// Binary is tofu, terraform or a path. Empty means tofu, or else terraform.
	Binary string
	// Version is a constraint such as ">= 1.8"; empty means DefaultVersion.
	Version string
	// Dirs are searched after PATH.
	Dirs []string
	// Helper is the program that confines engine and provider: see internal/confine.
	// Without one they can read what this process can.
	Helper string
}

// Engine is an OpenTofu or Terraform that was found.
type Engine struct {
	// Path is absolute.
	Path string
	// Version is such as "1.12.6".
	Version string
	// Helper confines the engine and the provider, if there is one.
	Helper string

	// idle are clients of directories in which nobody works now. Each has asked the
	// engine for its version, which is a process.
	idle sync.Map
	// sums are the hashes of providers' files, by what tells whether they changed.
	sums sync.Map
}

// keep keeps a client until somebody works in its directory again, and forgets those
// of directories that are gone.
func (e *Engine) keep(dir string, client *tfexec.Terraform) {
	e.idle.Range(func(key, _ any) bool {
		if name, _ := key.(string); !exists(name) {
			e.idle.Delete(key)
		}
		return true
	})
	e.idle.Store(dir, client)
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// client returns a client for a directory. Nobody else works there.
func (e *Engine) client(ctx context.Context, dir string, set func(*tfexec.Terraform) error) (*tfexec.Terraform, error) {
	if kept, ok := e.idle.LoadAndDelete(dir); ok {
		client, _ := kept.(*tfexec.Terraform) // nothing else is in it
		return client, set(client)
	}
	client, err := tfexec.NewTerraform(dir, cmp.Or(e.Helper, e.Path))
	if err != nil {
		return nil, err
	}
	if err := set(client); err != nil {
		return nil, err
	}
	// Asked now, because terraform-exec would mix the answer into the output of
	// the first command that wants to know.
	_, _, err = client.Version(ctx, false)
	return client, err
}

// Name returns the engine's command: tofu or terraform.
func (e *Engine) Name() string { return filepath.Base(e.Path) }

// String returns the engine's command, version and path.
func (e *Engine) String() string { return fmt.Sprintf("%s %s (%s)", e.Name(), e.Version, e.Path) }

// EngineError says that no engine was found that may be used.
type EngineError struct {
	// Wanted are the commands or the path that were looked for.
	Wanted     []string
	Constraint string
	// Searched are the directories, in order.
	Searched []string
	// Rejected says of each binary that was found why it was not taken.
	Rejected []string
}

// Error says what was looked for, where, and how to mend it.
func (e *EngineError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no engine: looked for %s, version %s", strings.Join(e.Wanted, " or "), e.Constraint)
	if len(e.Searched) > 0 {
		b.WriteString(", in " + strings.Join(e.Searched, ", "))
	}
	for _, r := range e.Rejected {
		b.WriteString("; not taken: " + r)
	}
	b.WriteString(": install OpenTofu (https://opentofu.org), build it by `make tools`, or set engine.binary in numaform.yaml")
	return b.String()
}

// FindEngine finds the engine: the given path, or the first that fits on PATH and
// then in cfg.Dirs, OpenTofu before Terraform.
func FindEngine(ctx context.Context, cfg EngineConfig) (*Engine, error) {
	if cfg.Version == "" {
		cfg.Version = DefaultVersion
	}
	constraints, err := version.NewConstraint(cfg.Version)
	if err != nil {
		return nil, fmt.Errorf("reading engine.version %q: %w: write it like %q", cfg.Version, err, DefaultVersion)
	}
	f := &finder{constraints: constraints, failure: EngineError{Constraint: cfg.Version}}
	if strings.ContainsRune(cfg.Binary, filepath.Separator) {
		engine, err := f.path(ctx, cfg.Binary)
		if err == nil {
			engine.Helper = cfg.Helper
		}
		return engine, err
	}
	names := []string{"tofu", "terraform"}
	if cfg.Binary != "" {
		names = []string{cfg.Binary}
	}
	f.failure.Searched = append(filepath.SplitList(os.Getenv("PATH")), cfg.Dirs...)
	for _, name := range names {
		if engine := f.search(ctx, name, cfg.Dirs); engine != nil {
			engine.Helper = cfg.Helper
			return engine, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("finding engine: %w", err)
	}
	f.failure.Wanted = names
	return nil, &f.failure
}

// finder remembers why binaries were not taken.
type finder struct {
	constraints version.Constraints
	failure     EngineError
	versions    map[string]*version.Version
}

// path takes a binary that the user named.
func (f *finder) path(ctx context.Context, path string) (*Engine, error) {
	f.failure.Wanted = []string{path}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("finding engine %s: %w", path, err)
	}
	if _, err := (&fs.AnyVersion{ExactBinPath: absolute}).Find(ctx); err != nil {
		f.reject(absolute, "not there, or not executable")
		return nil, &f.failure
	}
	found, err := f.version(ctx, absolute)
	if err != nil {
		return nil, &f.failure
	}
	if !f.constraints.Check(found) {
		return nil, &f.failure
	}
	return &Engine{Path: absolute, Version: found.String()}, nil
}

// search looks for a command on PATH and in dirs.
func (f *finder) search(ctx context.Context, name string, dirs []string) *Engine {
	p := product.Terraform
	p.Name = name
	p.BinaryName = func() string { return name }
	p.GetVersion = f.version
	source := &fs.Version{Product: p, Constraints: f.constraints, ExtraPaths: dirs, Timeout: engineTimeout}
	if err := source.Validate(); err != nil {
		f.reject(name, err.Error())
		return nil
	}
	path, err := source.Find(ctx)
	if err != nil {
		return nil
	}
	found := f.versions[path]
	if found == nil {
		if found, err = f.version(ctx, path); err != nil {
			return nil
		}
	}
	return &Engine{Path: path, Version: found.String()}
}

// version asks a binary for its version. It sees a clean environment and only
// stdout counts: any warning of the user's CLI configuration would break it.
func (f *finder) version(ctx context.Context, path string) (*version.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version", "-json")
	// A CLI configuration that is missing or unreadable warns on stdout, an empty one does not.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CHECKPOINT_DISABLE=1", "HOME=" + os.DevNull, "TF_CLI_CONFIG_FILE=" + os.DevNull}
	cmd.Dir = string(filepath.Separator) // no configuration of anybody's lies there
	out, err := cmd.Output()
	if err != nil {
		f.reject(path, "asking for its version: "+err.Error())
		return nil, fmt.Errorf("asking %s for its version: %w", path, err)
	}
	var answer struct {
		Version string `json:"terraform_version"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		f.reject(path, "it does not tell its version as OpenTofu and Terraform do")
		return nil, fmt.Errorf("reading version of %s: %w", path, err)
	}
	found, err := version.NewVersion(answer.Version)
	if err != nil {
		f.reject(path, fmt.Sprintf("it says that it is version %q", answer.Version))
		return nil, fmt.Errorf("reading version of %s: %w", path, err)
	}
	if f.versions == nil {
		f.versions = map[string]*version.Version{}
	}
	f.versions[path] = found
	if !f.constraints.Check(found) {
		f.reject(path, "it is version "+found.String())
	}
	return found, nil
}

func (f *finder) reject(path, reason string) {
	f.failure.Rejected = append(f.failure.Rejected, path+": "+reason)
}
