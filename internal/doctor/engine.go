package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/confine"
	"github.com/numaform/numaform/internal/scratch"
	"github.com/numaform/numaform/internal/shell"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/workdir"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// downloadTimeout limits the download of the provider.
const downloadTimeout = 5 * time.Minute

// engine checks OpenTofu or Terraform, the confinement of the engine to its own files, and
// the provider.
func (e *examination) engine(ctx context.Context) {
	engine, err := state.FindEngine(ctx, e.config.Engine)
	if err != nil {
		e.failed("engine", "", err)
	} else {
		e.ok("engine", "", engine.String())
	}

	if version := confine.Version(); version > 0 {
		e.ok("confinement", "", fmt.Sprintf("the kernel supports Landlock version %d: engine and provider can access only their own files", version))
	} else {
		e.add("confinement", Warn, "",
			"the kernel does not support Landlock: engine and provider can access all files of numaform's user",
			"run numaform as a separate user, on Linux 5.13 or newer with landlock in the kernel parameter lsm=")
	}

	if e.config.PluginDir != "" {
		e.mirror(e.config.PluginDir)
		return
	}
	if err != nil {
		e.skip("", "engine", "provider")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	if err := fetch(ctx, engine); err != nil {
		what, fix := err.Error(), ""
		if failure := (*state.CommandError)(nil); errors.As(err, &failure) {
			what = failure.Text // without the temporary directory
		}
		if !strings.Contains(what, "engine.plugin_dir") { // otherwise the error contains the hint
			fix = "allow this machine to reach the registry, or set engine.plugin_dir to a mirror with the provider (`make provider` builds one)"
		}
		e.add("provider", Fail, "the registry", strings.Join(strings.Fields(what), " "), fix)
		return
	}
	e.ok("provider", "the registry", guard.Provider+" "+generator.ProviderVersion)
}

// mirror checks for the provider in a filesystem mirror, unpacked or packed.
func (e *examination) mirror(dir string) {
	name := filepath.Join(dir, filepath.FromSlash(guard.Provider))
	platform := runtime.GOOS + "_" + runtime.GOARCH
	packed := fmt.Sprintf("terraform-provider-proxmox_%s_%s.zip", generator.ProviderVersion, platform)
	for _, path := range []string{filepath.Join(name, generator.ProviderVersion, platform), filepath.Join(name, packed)} {
		if _, err := os.Stat(path); err == nil {
			e.ok("provider", dir, guard.Provider+" "+generator.ProviderVersion)
			return
		}
	}

	var names []string
	if entries, err := os.ReadDir(name); err == nil {
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
	}
	e.add("provider", Fail, dir,
		fmt.Sprintf("engine.plugin_dir lacks %s %s for %s; available versions: %s", guard.Provider, generator.ProviderVersion, platform, list(names)),
		fmt.Sprintf("copy the provider to %s (`make provider` builds one), or remove engine.plugin_dir to use the registry",
			filepath.Join(name, generator.ProviderVersion, platform)))
}

// fetch downloads the provider in the same way as a first plan: the engine initializes a root
// without VMs in a temporary directory.
func fetch(ctx context.Context, engine *state.Engine) (err error) {
	temporary, err := scratch.New("doctor")
	if err != nil {
		return fmt.Errorf("trying the provider: %w", err)
	}
	defer func() { _ = temporary.Remove() }()
	dir := filepath.Join(temporary.Path(), "fleet")
	host := topology.HostID{Region: "doctor", Host: "doctor"}
	files, err := generator.Current().Render(fleet.Fleet{
		ClusterID: "doctor",
		Backend:   fleet.Backend{Type: "local"},
		Hosts:     []topology.HostID{host},
		Regions:   []fleet.Region{{Name: host.Region, Endpoint: "https://doctor.invalid/"}},
	})
	if err != nil {
		return fmt.Errorf("trying the provider: %w", err)
	}
	if err := store.NewDirectory(dir).Write(files); err != nil {
		return err
	}
	workspace, err := state.New(state.Config{
		Dir:       filepath.Join(dir, filepath.FromSlash(generator.RootDir(host))),
		Engine:    engine,
		Providers: &state.Providers{Record: filepath.Join(dir, "providers.json"), Dir: filepath.Join(dir, "providers")},
	})
	if err != nil {
		return err
	}
	defer func() { _ = workspace.Close() }()
	return workspace.Provide(ctx)
}

// roomyMiB is the recommended free space in MiB for working directories of the engine,
// states, and the clone of a repository.
const roomyMiB = 512

// stateDir checks that the state directory is private and writable and has free space. If it
// does not exist yet, stateDir checks its nearest existing parent.
func (e *examination) stateDir() {
	dir := e.config.StateDir
	if dir == "" {
		e.add("state", Fail, "", "no state directory is configured", "set state_dir in numaform.yaml, or the environment variable HOME")
		return
	}
	existing, what := dir, "is accessible only to this user"
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		what = "does not exist yet: the first apply creates it"
		for errors.Is(err, fs.ErrNotExist) && existing != filepath.Dir(existing) {
			existing = filepath.Dir(existing)
			_, err = os.Lstat(existing)
		}
	} else if err == nil {
		err = workdir.Private(dir)
	}
	if err != nil {
		problem, fix := err.Error(), ""
		if wrong, ok := errors.AsType[*workdir.PrivateError](err); ok {
			problem, fix = wrong.Problem, wrong.Hint
		}
		e.add("state", Fail, dir, problem, fix)
		return
	}
	if err := unix.Access(existing, unix.W_OK|unix.X_OK); err != nil {
		e.add("state", Fail, dir, fmt.Sprintf("cannot be written: %s: %v", existing, err),
			"grant numaform's user write access, or set state_dir in numaform.yaml to another directory")
		return
	}
	if info != nil && info.Mode().Perm()&0o077 != 0 {
		command := Command{Line: shell.Line("chmod", "700", dir), Safe: true}
		e.add("state", Warn, dir, fmt.Sprintf("is readable by other users (mode %04o)", info.Mode().Perm()), command.Line, command)
		return
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(existing, &disk); err == nil {
		free := disk.Bavail * uint64(disk.Bsize) >> 20 //nolint:gosec // a block's size
		what += fmt.Sprintf(", %d MiB free", free)
		if free < roomyMiB {
			e.add("state", Warn, dir, what,
				fmt.Sprintf("free at least %d MiB, or set state_dir in numaform.yaml to a directory on another disk: a state that cannot be written is lost", roomyMiB))
			return
		}
	}
	e.ok("state", dir, what)
}
