package scaler

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/workdir"
	"github.com/numaform/numaform/modules"
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

// keptPlaces returns the places below the state directory, to which no other user may
// have write access.
func (s *Scaler) keptPlaces() (places, error) {
	if s.config.StateDir == "" {
		return places{}, errors.New("there is no state directory: set state_dir in numaform.yaml, or the variable HOME")
	}
	if err := workdir.Private(s.config.StateDir, s.config.Dir); err != nil {
		return places{}, err
	}
	at, err := makePlaces(s.config.StateDir, false)
	if err == nil {
		err = s.settleIn(at)
	}
	if err == nil {
		err = s.migrate(at)
	}
	return at, err
}

// dryPlaces returns temporary places, below a directory for temporary files.
func dryPlaces(temporary string) (places, error) { return makePlaces(temporary, true) }

func makePlaces(dir string, dry bool) (places, error) {
	at := places{work: filepath.Join(dir, workDir), states: filepath.Join(dir, statesDir), dry: dry}
	for _, dir := range []string{at.work, at.states} {
		if err := workdir.Private(dir); err != nil {
			return places{}, err
		}
	}
	return at, nil
}

// dir returns the engine's working directory for a host.
func (p places) dir(shard fleet.Shard) string {
	return filepath.Join(p.work, filepath.FromSlash(generator.ShardDir(shard)))
}

// state returns the path of a file of a host's states.
func (p places) state(shard fleet.Shard, name string) string {
	return filepath.Join(p.states, filepath.FromSlash(generator.ShardDir(shard)), name)
}

// rendered returns everything that the engine may read for a host, by path relative to
// the directory with all hosts: the rendered fleet after a change, and the modules that
// it calls, from numaform itself. It never uses files from the fleet's directory.
func (s *Scaler) rendered(change *Change, shard fleet.Shard, dry bool) (map[string][]byte, error) {
	files, dir := map[string][]byte{}, generator.ShardDir(shard)
	for name, content := range change.AfterFiles {
		if path.Dir(name) == dir {
			files[name] = content
		}
	}
	for _, vm := range change.After.VMs {
		if vm.Host != shard {
			continue
		}
		carried, ok := s.config.Release.Carried(vm.Module)
		if !ok {
			return nil, &UnknownModulesError{VM: vm.Name, Hash: vm.Module}
		}
		for name, content := range carried {
			files[generator.ModuleFile(vm.Module, name)] = content
		}
	}
	if dry {
		return files, s.keepFromBackend(change, shard, files)
	}
	return files, nil
}

// UnknownModulesError reports that a VM calls modules that this numaform does not carry.
type UnknownModulesError struct{ VM, Hash string }

func (e *UnknownModulesError) Error() string {
	return fmt.Sprintf("vm %s: calls modules %s, which this numaform (%s) does not carry: use a version that does, "+
		"or allow them under modules.allow in numaform.yaml", e.VM, e.Hash, modules.Hash())
}

// keepFromBackend makes a dry run plan a host that has had no VM yet without the backend:
// some backends write an empty state as soon as they are read.
func (s *Scaler) keepFromBackend(change *Change, shard fleet.Shard, files map[string][]byte) error {
	for _, host := range change.Before.Hosts {
		if host == shard {
			return nil
		}
	}
	if s.config.Backend.Type == "local" {
		return nil
	}
	alone := change.After
	alone.Backend = fleet.Backend{Type: "local"}
	local, err := s.config.Release.Render(alone)
	if err != nil {
		return fmt.Errorf("planning without the backend: %w", err)
	}
	name := path.Join(generator.ShardDir(shard), rootFile)
	files[name] = local[name]
	return nil
}

// rootFile contains the backend configuration of a host's root.
const rootFile = "main.tf"

// caDir returns the directory with the certificates of a region. No region's name begins
// with a dot.
func caDir(work string, region Region) string {
	return filepath.Join(work, certificates, string(region.Name))
}

// certificates is the directory of the regions' CAs, relative to the directory with all
// hosts.
const certificates = ".ca"

// writeCAs writes each region's CA to a directory of its own: a program that gets it as
// SSL_CERT_DIR still reads the system's bundle.
func (s *Scaler) writeCAs(work string) error {
	tree := workdir.Tree{Root: work, Files: map[string][]byte{}}
	for _, region := range s.config.Regions {
		if region.CAFile == "" {
			continue
		}
		pem, err := os.ReadFile(region.CAFile)
		if err != nil {
			return fmt.Errorf("reading ca_file: %w: copy /etc/pve/pve-root-ca.pem from a host", err)
		}
		tree.Files[path.Join(certificates, string(region.Name), "ca.pem")] = pem
	}
	if _, err := tree.Restore(); err != nil {
		return fmt.Errorf("writing the regions' certificates: %w", err)
	}
	return nil
}
