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
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/workdir"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// patience limits the duration of the provider's download.
const patience = 5 * time.Minute

// engine checks OpenTofu or Terraform, how engine and provider are restricted to their own
// files, and the provider.
func (e *examination) engine(ctx context.Context) {
	engine, err := state.FindEngine(ctx, e.config.Engine)
	if err != nil {
		e.failed("engine", "", err)
	} else {
		e.ok("engine", "", engine.String())
	}

	if version := confine.Version(); version > 0 {
		e.ok("confinement", "", fmt.Sprintf("the kernel has Landlock, version %d: engine and provider see their own files only", version))
	} else {
		e.add("confinement", Warn, "",
			"the kernel has no Landlock: engine and provider can read what numaform's user can; "+
				"they run what numaform rendered and trusts by its hash only, with the variables that they need",
			"run numaform as a user of its own, on Linux 5.13 or newer with landlock among the kernel's lsm= modules")
	}

	if e.config.PluginDir != "" {
		e.mirror(e.config.PluginDir)
		return
	}
	if err != nil {
		e.skip("", "engine", "provider")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := fetch(ctx, engine); err != nil {
		what, fix := err.Error(), ""
		if !strings.Contains(what, "engine.plugin_dir") { // otherwise the error has the hint
			fix = "allow this machine to reach the registry, or set engine.plugin_dir to a mirror that holds the provider (`make provider` builds one)"
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

	have := "nothing of it is there"
	if entries, err := os.ReadDir(name); err == nil && len(entries) > 0 {
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		have = "there is " + list(names)
	}
	e.add("provider", Fail, dir,
		fmt.Sprintf("engine.plugin_dir lacks %s %s for %s: %s", guard.Provider, generator.ProviderVersion, platform, have),
		fmt.Sprintf("put it there as %s (`make provider` builds one), or take engine.plugin_dir out to use the registry",
			filepath.Join(guard.Provider, generator.ProviderVersion, platform)))
}

// fetch makes the engine fetch the provider as it would for a first plan: it initializes a
// root without VMs in a temporary directory.
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

// roomyMiB is the free space, in MiB, recommended for the engine's working directories, the
// states and the clone of a repository.
const roomyMiB = 512

// stateDir checks the state directory: accessible to this user alone, writable, and with
// free space. If it does not exist yet, the parent directory is checked.
func (e *examination) stateDir() {
	dir := e.config.StateDir
	if dir == "" {
		e.add("state", Fail, "", "there is no state directory", "set state_dir in numaform.yaml, or the variable HOME")
		return
	}
	existing, what := dir, "is this user's alone"
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		what = "is not there yet: the first apply makes it"
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
			"allow the user that numaform runs as to write there, or set state_dir in numaform.yaml to another directory")
		return
	}
	if info != nil && info.Mode().Perm()&0o077 != 0 {
		e.add("state", Warn, dir, fmt.Sprintf("can be read by others (mode %04o)", info.Mode().Perm()), "chmod 700 it")
		return
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(existing, &disk); err == nil {
		free := disk.Bavail * uint64(disk.Bsize) >> 20 //nolint:gosec // a block's size
		what += fmt.Sprintf(", %d MiB are free", free)
		if free < roomyMiB {
			e.add("state", Warn, dir, what,
				fmt.Sprintf("make room for %d MiB: a state that cannot be written is lost, or set state_dir in numaform.yaml to another disk", roomyMiB))
			return
		}
	}
	e.ok("state", dir, what)
}
