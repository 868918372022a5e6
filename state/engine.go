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

// DefaultVersion is the default constraint on the engine's version.
const DefaultVersion = ">= 1.8"

// engineTimeout limits how long a binary may take to print its version.
const engineTimeout = 30 * time.Second

// EngineConfig selects the engine.
type EngineConfig struct {
	// Binary is tofu, terraform or a path. Empty means tofu if it is found, or else
	// terraform.
	Binary string
	// Version is a constraint such as ">= 1.8"; empty means DefaultVersion.
	Version string
	// Dirs are searched after PATH.
	Dirs []string
	// Helper is the program that confines the engine and the provider: see
	// internal/confine. Without it, they can read everything that this process can.
	Helper string
}

// Engine is an installed OpenTofu or Terraform.
type Engine struct {
	// Path is absolute.
	Path string
	// Version is such as "1.12.6".
	Version string
	// Helper is the program that confines the engine and the provider, or empty.
	Helper string

	// idle holds the clients of directories that are not in use. Each client has already
	// run the engine for its version, which costs a process.
	idle sync.Map
	// sums holds the hashes of providers' files, together with the file states that they
	// were computed for.
	sums sync.Map
}

// keep stores a client for the next use of its directory, and drops the clients of
// deleted directories.
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

// client returns a client for a directory that is not in use.
func (e *Engine) client(ctx context.Context, dir string, set func(*tfexec.Terraform) error) (*tfexec.Terraform, error) {
	if kept, ok := e.idle.LoadAndDelete(dir); ok {
		client, _ := kept.(*tfexec.Terraform) // idle contains nothing else
		return client, set(client)
	}
	client, err := tfexec.NewTerraform(dir, cmp.Or(e.Helper, e.Path))
	if err != nil {
		return nil, err
	}
	if err := set(client); err != nil {
		return nil, err
	}
	// Run it now: otherwise terraform-exec would mix the output into the first command
	// that needs the version.
	_, _, err = client.Version(ctx, false)
	return client, err
}

// Name returns the engine's command: tofu or terraform.
func (e *Engine) Name() string { return filepath.Base(e.Path) }

// String returns the engine's command, version and path.
func (e *Engine) String() string { return fmt.Sprintf("%s %s (%s)", e.Name(), e.Version, e.Path) }

// EngineError reports that no usable engine was found.
type EngineError struct {
	// Wanted are the commands or the path that were searched for.
	Wanted     []string
	Constraint string
	// Searched are the directories, in order.
	Searched []string
	// Rejected maps each binary that was found to the reason for rejecting it.
	Rejected []string
}

// Error says what was searched for, where, and how to fix it.
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

// FindEngine finds the engine: the given path, or the first suitable one on PATH and then
// in cfg.Dirs. It prefers OpenTofu to Terraform.
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

// finder remembers why binaries were rejected.
type finder struct {
	constraints version.Constraints
	failure     EngineError
	versions    map[string]*version.Version
}

// path checks a binary that the user named.
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

// version runs a binary to get its version. It uses a clean environment and reads only
// stdout, because any warning about the user's CLI configuration would corrupt the
// output.
func (f *finder) version(ctx context.Context, path string) (*version.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version", "-json")
	// A missing or unreadable CLI configuration causes a warning on stdout, an empty one
	// does not.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CHECKPOINT_DISABLE=1", "HOME=" + os.DevNull, "TF_CLI_CONFIG_FILE=" + os.DevNull}
	cmd.Dir = string(filepath.Separator) // a directory without a configuration
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
