package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	// Version is the version number, such as "1.12.6".
	Version string
	// Helper is the program that confines the engine and the provider, or empty.
	Helper string

	// idle holds the clients of directories that are not in use. Each client has already
	// queried the engine's version, which starts a process.
	idle sync.Map
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
	// Rejected lists each binary that was found, with the reason for rejecting it.
	Rejected []string
}

// Error names the programs and directories that were searched, and the fix.
func (e *EngineError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no engine found: looked for %s, version %s", strings.Join(e.Wanted, " or "), e.Constraint)
	if len(e.Searched) > 0 {
		b.WriteString(", in " + strings.Join(e.Searched, ", "))
	}
	for _, r := range e.Rejected {
		b.WriteString("; rejected: " + r)
	}
	b.WriteString(": install OpenTofu (https://opentofu.org), build it with `make tools` in numaform's repository, or set engine.binary in numaform.yaml")
	return b.String()
}

// FindEngine finds a suitable engine: at the path in cfg.Binary, or under that name on
// PATH or in cfg.Dirs. If cfg.Binary is empty, it prefers OpenTofu to Terraform. If it
// finds none, it returns an *EngineError.
func FindEngine(ctx context.Context, cfg EngineConfig) (*Engine, error) {
	cfg.Version = cmp.Or(cfg.Version, DefaultVersion)
	constraints, err := version.NewConstraint(cfg.Version)
	if err != nil {
		return nil, fmt.Errorf("reading engine.version %q: %w: write it like %q", cfg.Version, err, DefaultVersion)
	}
	failure := &EngineError{Wanted: []string{"tofu", "terraform"}, Constraint: cfg.Version}
	if cfg.Binary != "" {
		failure.Wanted = []string{cfg.Binary}
	}
	versions := map[string]*version.Version{}
	// examine returns the version of a binary. If the binary is not suitable, examine
	// records the reason.
	examine := func(ctx context.Context, path string) (*version.Version, error) {
		path, err := filepath.Abs(path) // PATH may name relative directories
		if err != nil {
			return nil, err
		}
		found, err := engineVersion(ctx, path)
		switch {
		case err != nil:
			failure.Rejected = append(failure.Rejected, path+": "+err.Error())
			return nil, err
		case !constraints.Check(found):
			failure.Rejected = append(failure.Rejected, path+": it is version "+found.String())
		}
		versions[path] = found
		return found, nil
	}

	if strings.ContainsRune(cfg.Binary, filepath.Separator) {
		path, err := filepath.Abs(cfg.Binary)
		if err != nil {
			return nil, fmt.Errorf("finding engine %s: %w", cfg.Binary, err)
		}
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			failure.Rejected = append(failure.Rejected, path+": does not exist or is not executable")
			return nil, failure
		}
		if found, err := examine(ctx, path); err == nil && constraints.Check(found) {
			return &Engine{Path: path, Version: found.String(), Helper: cfg.Helper}, nil
		}
	} else {
		failure.Searched = append(filepath.SplitList(os.Getenv("PATH")), cfg.Dirs...)
		for _, name := range failure.Wanted {
			source := &fs.Version{
				Product:     product.Product{Name: name, BinaryName: func() string { return name }, GetVersion: examine},
				Constraints: constraints,
				ExtraPaths:  cfg.Dirs,
				Timeout:     engineTimeout,
			}
			path, err := source.Find(ctx)
			if err == nil {
				return &Engine{Path: path, Version: versions[path].String(), Helper: cfg.Helper}, nil
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("finding engine: %w", err)
	}
	return nil, failure
}

// engineVersion runs a binary to get its version. It uses a clean environment and reads
// only stdout, because any warning about the user's CLI configuration would corrupt the
// output.
func engineVersion(ctx context.Context, path string) (*version.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version", "-json")
	// A missing or unreadable CLI configuration causes a warning on stdout; an empty one
	// does not.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CHECKPOINT_DISABLE=1", "HOME=" + os.DevNull, "TF_CLI_CONFIG_FILE=" + os.DevNull}
	cmd.Dir = string(filepath.Separator) // a directory without a configuration
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("reading its version: %w", err)
	}
	var answer struct {
		Version string `json:"terraform_version"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, errors.New("its version output is not in the format of OpenTofu or Terraform")
	}
	found, err := version.NewVersion(answer.Version)
	if err != nil {
		return nil, fmt.Errorf("it reports version %q", answer.Version)
	}
	return found, nil
}

// client returns a client for a directory: the one that release stored, or a new one.
func (e *Engine) client(ctx context.Context, dir string, set func(*tfexec.Terraform) error) (*tfexec.Terraform, error) {
	if idle, ok := e.idle.LoadAndDelete(dir); ok {
		client, _ := idle.(*tfexec.Terraform) // idle contains nothing else
		return client, set(client)
	}
	client, err := tfexec.NewTerraform(dir, cmp.Or(e.Helper, e.Path))
	if err != nil {
		return nil, err
	}
	if err := set(client); err != nil {
		return nil, err
	}
	// Query the version now: otherwise terraform-exec would mix this output into that of
	// the first command that needs the version.
	_, _, err = client.Version(ctx, false)
	return client, err
}

// release stores a client for the next use of its directory, and drops the clients of
// deleted directories.
func (e *Engine) release(dir string, client *tfexec.Terraform) {
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
