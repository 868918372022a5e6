package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scratch"
	"github.com/numaform/numaform/internal/workdir"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// places are the engine's directories: work contains a directory for each host, and the
// modules; states contains the local states, and the states that no backend accepted.
type places struct {
	work, states string
	// dry is set for temporary places: states are copied to them.
	dry bool
}

// The directories below the state directory.
const (
	workDir   = "work"
	statesDir = "states"
)

// permanentPlaces creates the places below the state directory, to which no other user may
// have write access, and moves the states of a moved fleet, or of an older version, there.
func (s *Scaler) permanentPlaces() (places, error) {
	if s.config.StateDir == "" {
		return places{}, errors.New("no state directory: set state_dir in numaform.yaml, or set the environment variable HOME")
	}
	if err := workdir.Private(s.config.StateDir, s.config.Dir); err != nil {
		return places{}, err
	}
	at, err := s.makePlaces(s.config.StateDir, false)
	if err == nil {
		err = s.claimStateDir(at)
	}
	if err == nil {
		err = s.migrate(at)
	}
	return at, err
}

// inScratch calls do with temporary places, which it deletes afterwards. Errors about
// these places begin with doing.
func (s *Scaler) inScratch(name, doing string, do func(at places) error) error {
	temporary, err := scratch.New(name)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	at, err := s.makePlaces(temporary.Path(), true)
	if err != nil {
		err = fmt.Errorf("%s: %w", doing, err)
	} else {
		err = do(at)
	}
	return errors.Join(err, temporary.Remove())
}

// makePlaces creates the places in dir, with the certificates of the regions.
func (s *Scaler) makePlaces(dir string, dry bool) (places, error) {
	at := places{work: filepath.Join(dir, workDir), states: filepath.Join(dir, statesDir), dry: dry}
	for _, dir := range []string{at.work, at.states} {
		if err := workdir.Private(dir); err != nil {
			return places{}, err
		}
	}

	// Each region's CA has its own directory: a program that gets it as SSL_CERT_DIR
	// still reads the system's bundle.
	tree := workdir.Tree{Root: at.work, Files: map[string][]byte{}}
	for _, region := range s.config.Regions {
		if region.CAFile == "" {
			continue
		}
		pem, err := os.ReadFile(region.CAFile)
		if err != nil {
			return places{}, fmt.Errorf("reading ca_file of region %s: %w: copy /etc/pve/pve-root-ca.pem from a host of the region", region.Name, err)
		}
		tree.Files[path.Join(certificates, string(region.Name), "ca.pem")] = pem
	}
	if _, err := tree.Restore(); err != nil {
		return places{}, fmt.Errorf("writing the regions' certificates: %w", err)
	}
	return at, nil
}

// StateFile returns the path of a host's state below a state directory, for states that are
// files there.
func StateFile(stateDir string, host topology.HostID) string {
	return places{states: filepath.Join(stateDir, statesDir)}.state(host, stateFile)
}

// state returns the path of a file of a host's states.
func (p places) state(host topology.HostID, name string) string {
	return filepath.Join(p.states, filepath.FromSlash(generator.RootDir(host)), name)
}

// workspace returns the workspace of a host's nodes, or of its templates if the change is
// about them.
func (s *Scaler) workspace(change *Change, at places, host topology.HostID) (*state.Workspace, error) {
	env, err := s.environment(at.work, host)
	if err != nil {
		return nil, err
	}
	config := state.Config{
		Root:   at.work,
		Engine: s.config.Engine, Env: env, PluginDir: s.config.PluginDir, Providers: s.config.Providers,
		Kubeconfig: s.config.Kubeconfig,
		Encryption: s.config.Encryption,
		WaitDelay:  s.region(host.Region).WaitDelay,
		Log:        s.config.Log,
		Progress: func(event state.Event) {
			switch event.Kind {
			case state.EventProgress:
			case state.EventStart, state.EventComplete:
				s.routine(host, event.Message)
			default:
				s.config.Progress(host, event.Message)
			}
		},
	}
	if !at.dry {
		// A dry run has its own directory, and a lock that it finds may belong to an
		// apply of this process.
		config.Gone = s.config.HolderGone
	}
	if config.Gone != nil {
		// With HolderGone, no other live process works on the state: a longer wait would
		// not help.
		config.LockTimeout = 5 * time.Second
	}

	root := generator.RootDir(host)
	config.UnlockCommand = "numaform unlock " + host.String()
	if t := change.templates; t != nil {
		root = generator.TemplateRootDir(host)
		config.UnlockCommand = "numaform unlock --templates " + host.String()
		config.Files = t.root
		config.Parallelism = 2
		home := filepath.Join(at.states, filepath.FromSlash(root))
		if err := workdir.Private(home); err != nil {
			return nil, err
		}
		if s.keepsStates() {
			config.BackendConfig = map[string]string{"path": filepath.Join(home, stateFile)}
		}
	} else {
		config.Parallelism = len(on(change.Added, host)) + len(on(change.Removed, host))
		if config.Files, err = s.rendered(change, host, at.dry); err != nil {
			return nil, err
		}
		if config.BackendConfig, err = s.backendConfig(change, at, host); err != nil {
			return nil, err
		}
	}
	config.Dir = filepath.Join(at.work, filepath.FromSlash(root))
	config.Errored = filepath.Join(at.states, filepath.FromSlash(root), erroredFile)
	return state.New(config)
}

// environment returns the variables that log the provider in and make it trust the
// region's CA in addition to the system's.
func (s *Scaler) environment(work string, host topology.HostID) (map[string]string, error) {
	region := s.region(host.Region)
	env := map[string]string{}
	if region.Live != nil {
		maps.Copy(env, region.Live.ProviderEnv())
	} else {
		// A dry run makes no requests, but the provider requires a credential.
		env["PROXMOX_VE_API_TOKEN"] = "numaform@pve!none=00000000-0000-0000-0000-000000000000"
		if region.Endpoint == "" {
			env["PROXMOX_VE_ENDPOINT"] = "https://proxmox.invalid:8006/"
		}
	}
	if region.CAFile != "" {
		dir, err := filepath.Abs(filepath.Join(work, certificates, string(region.Name)))
		if err != nil {
			return nil, fmt.Errorf("finding the certificates of region %s: %w", region.Name, err)
		}
		env["SSL_CERT_DIR"] = dir + ":/etc/ssl/certs:/etc/pki/tls/certs"
	}
	return env, nil
}

// certificates is the directory of the regions' CAs, relative to the directory with all
// hosts. No region's name begins with a dot.
const certificates = ".ca"

// UnknownModulesError reports that a VM calls modules that this numaform does not
// contain.
type UnknownModulesError struct {
	VM, Hash string
	// Known are the hashes of the modules that VMs may call.
	Known []string
}

func (e *UnknownModulesError) Error() string {
	return fmt.Sprintf("vm %s: calls modules %s, which this numaform does not contain; it contains %s: use a version that contains them, "+
		"or add them to modules.allow in numaform.yaml", e.VM, e.Hash, strings.Join(e.Known, ", "))
}

// rootFile contains the backend configuration of a host's root.
const rootFile = "main.tf"

// rendered returns the files that the engine may read for a host, except the files of
// VMs, by path relative to the directory with all hosts: the rendered fleet after a
// change, and modules, which are from numaform itself. It never uses files from the
// fleet's directory.
func (s *Scaler) rendered(change *Change, host topology.HostID, dry bool) (map[string][]byte, error) {
	files := map[string][]byte{}
	dir := generator.RootDir(host)
	for name, content := range change.AfterFiles {
		if path.Dir(name) == dir {
			files[name] = content
		}
	}
	// The modules of new VMs stay in a root without VMs, so that its next VM needs no init.
	for name, content := range s.config.Release.Modules {
		files[generator.ModuleFile(modules.HashOf(s.config.Release.Modules), name)] = content
	}
	for i := range change.After.VMs {
		vm := &change.After.VMs[i]
		if vm.Host != host {
			continue
		}
		carried, ok := s.config.Release.Carried(vm.Module)
		if !ok {
			return nil, &UnknownModulesError{VM: vm.Name, Hash: vm.Module, Known: s.config.Release.Carries()}
		}
		for name, content := range carried {
			files[generator.ModuleFile(vm.Module, name)] = content
		}
		delete(files, generator.NodeFile(vm))
	}

	// A dry run plans a host that has had no VM yet without the backend: some backends write
	// an empty state as soon as they are read.
	if !dry || s.config.Backend.Type == "local" || slices.Contains(change.Before.Hosts, host) {
		return files, nil
	}
	alone := change.After
	alone.Backend = fleet.Backend{Type: "local"}
	local, err := s.config.Release.Render(alone)
	if err != nil {
		return nil, fmt.Errorf("rendering the fleet without its backend: %w", err)
	}
	name := path.Join(dir, rootFile)
	files[name] = local[name]
	return files, nil
}

// HostLock is the lock of one host's state.
type HostLock struct {
	Host topology.HostID
	// Err is nil if the lock is free, a *state.LockedError if another client holds it, or
	// the reason why that is unknown.
	Err error
}

// LocalStates reports whether the states are files of this machine, whose locks end with
// the process that acquired them.
func (s *Scaler) LocalStates() bool { return s.config.Backend.Type == "local" }

// Locks returns the lock of each host's state, from the backend. It returns none for local
// states.
func (s *Scaler) Locks(ctx context.Context) (locks []HostLock, err error) {
	from, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	hosts := from.fleet.AllHosts()
	if s.LocalStates() || len(hosts) == 0 {
		return nil, nil
	}
	if s.config.Engine == nil {
		return nil, ErrNoEngine
	}
	change := newChange(from, &topology.Snapshot{})
	if err := s.render(change); err != nil {
		return nil, err
	}
	err = s.inScratch("locks", "reading the locks of states", func(at places) error {
		locks = make([]HostLock, len(hosts))
		var group errgroup.Group
		group.SetLimit(maxParallelHosts)
		for i, host := range hosts {
			group.Go(func() error {
				workspace, err := s.workspace(change, at, host)
				if err == nil {
					err = errors.Join(workspace.Locked(ctx), workspace.Close())
				}
				locks[i] = HostLock{Host: host, Err: err}
				return nil
			})
		}
		return group.Wait()
	})
	return locks, err
}
