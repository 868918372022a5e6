package scaler

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/workdir"
	"github.com/numaform/numaform/topology"
)

// The files of a host's states.
const (
	// stateFile is the local backend's file for a state.
	stateFile = "terraform.tfstate"
	// erroredFile is a state that a backend did not accept.
	erroredFile = "errored.tfstate"
)

// keepsStates reports whether the states are files below the state directory.
func (s *Scaler) keepsStates() bool {
	return s.config.Backend.Type == "local" && s.config.Backend.Config["path"] == ""
}

// backendConfig creates the directory of a host's states, and returns the backend's
// configuration, or nil if the states are not files below the state directory. A dry run
// gets a copy of a local state, so that it behaves like an apply.
func (s *Scaler) backendConfig(change *Change, at places, host topology.HostID) (map[string]string, error) {
	home := at.state(host, stateFile)
	if err := workdir.Private(filepath.Dir(home)); err != nil {
		return nil, err
	}
	if !s.keepsStates() {
		return nil, nil
	}
	if at.dry {
		if err := s.copyState(home, host); err != nil {
			return nil, fmt.Errorf("copying the state of %s: %w", host, err)
		}
	}
	if _, err := os.Lstat(home); !errors.Is(err, fs.ErrNotExist) {
		return map[string]string{"path": home}, nil
	}

	// VMs of the fleet may exist that no state contains: they are imported by their markers
	// and keys, not created again.
	index := change.index()
	alive := 0
	for _, vm := range on(change.Before.VMs, host) {
		if _, ours := index.of(&vm); ours {
			alive++
		}
	}
	if alive > 0 {
		dir := filepath.Join(s.config.StateDir, statesDir)
		if !at.dry {
			dir = filepath.Dir(home)
		}
		s.config.Progress(host, fmt.Sprintf("no state exists in %s, but Proxmox has %s of the fleet: numaform imports the VMs by their markers; "+
			"if their state is elsewhere because the fleet or state_dir was moved, stop this run and move the state there", dir, topology.Count(alive, "VM")))
	}
	return map[string]string{"path": home}, nil
}

// copyState copies the state of a host from its place, or from the place that an older
// version used. If the host has no state, it does nothing.
func (s *Scaler) copyState(to string, host topology.HostID) error {
	dir, err := s.formerStateDir()
	if err != nil {
		return err
	}
	if dir == "" {
		dir = s.config.StateDir
	}
	from := places{states: filepath.Join(dir, statesDir)}
	content, err := os.ReadFile(from.state(host, stateFile))
	if errors.Is(err, fs.ErrNotExist) && !from.migrated() {
		old := relic{dir: s.config.Dir, name: generator.RootDir(host) + "/" + stateFile}
		content, err = old.read()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}

// owner identifies the fleet whose states are in a state directory.
type owner struct {
	ClusterID string `json:"cluster_id"`
	// Fleet is the directory of the fleet.
	Fleet string `json:"fleet"`
}

// ownerFile is the file that contains the owner. A fleet's directory has a file of the
// same name.
const ownerFile = "fleet.json"

// MovedFleetError reports that a state directory belongs to another copy of the fleet.
type MovedFleetError struct{ StateDir, Fleet, Other string }

// Error names both copies and the fix.
func (e *MovedFleetError) Error() string {
	return fmt.Sprintf("the states in %s belong to the fleet in %s, which still exists, and not to the fleet in %s: if the fleet was copied, use only one "+
		"of the copies and remove the other; if they are two fleets, give each its own clusterID and state_dir", e.StateDir, e.Other, e.Fleet)
}

// formerStateDir finds the state directory of a fleet that was moved, because the default
// directory is named after the fleet's place. It returns "" if the state directory already
// belongs to the fleet, or if no other directory has its states, and an error if several
// have. It returns a MovedFleetError if the states belong to a fleet that still exists:
// this fleet is then a copy of it.
func (s *Scaler) formerStateDir() (string, error) {
	if s.config.Place == "" || !s.keepsStates() {
		return "", nil
	}
	recorded, err := readOwner(s.config.StateDir)
	if err != nil {
		return "", err
	}
	if recorded != nil {
		if recorded.Fleet != s.config.Place && s.isOtherFleet(recorded.Fleet) {
			return "", &MovedFleetError{StateDir: s.config.StateDir, Fleet: s.config.Place, Other: recorded.Fleet}
		}
		return "", nil
	}
	if !strings.HasPrefix(filepath.Base(s.config.StateDir), s.config.ClusterID+"-") {
		return "", nil
	}

	files, err := filepath.Glob(filepath.Join(filepath.Dir(s.config.StateDir), s.config.ClusterID+"-*", ownerFile))
	if err != nil {
		return "", fmt.Errorf("looking for states of cluster %s: %w", s.config.ClusterID, err)
	}
	var found []string
	for _, file := range files {
		dir := filepath.Dir(file)
		recorded, err := readOwner(dir)
		states, _ := filepath.Glob(filepath.Join(dir, statesDir, "*", "*", stateFile))
		if err != nil || recorded == nil || recorded.ClusterID != s.config.ClusterID || len(states) == 0 {
			continue
		}
		if s.isOtherFleet(recorded.Fleet) {
			return "", &MovedFleetError{StateDir: dir, Fleet: s.config.Place, Other: recorded.Fleet}
		}
		found = append(found, dir)
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("looking for the states of the fleet in %s: several directories have the states of a fleet of cluster %s that no longer exists: %s: "+
		"set state_dir in numaform.yaml to the right one, or remove the others", s.config.Place, s.config.ClusterID, strings.Join(found, ", "))
}

// isOtherFleet reports whether a directory still contains another fleet.
func (s *Scaler) isOtherFleet(dir string) bool {
	there, err := os.Stat(dir)
	if err != nil {
		return false
	}
	if here, err := os.Stat(s.config.Place); err == nil && os.SameFile(here, there) {
		return false
	}
	_, err = os.Stat(filepath.Join(dir, ownerFile))
	return err == nil
}

// readOwner returns the owner recorded in a state directory, or nil if none is recorded.
func readOwner(dir string) (*owner, error) {
	name := filepath.Join(dir, ownerFile)
	content, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // a new directory has no record
	}
	if err != nil {
		return nil, fmt.Errorf("reading the owner of the states: %w", err)
	}
	var recorded owner
	if err := json.Unmarshal(content, &recorded); err != nil {
		return nil, fmt.Errorf("reading %s: %w: remove this file if the states in its directory belong to this fleet", name, err)
	}
	return &recorded, nil
}

// claimStateDir moves the states of a moved fleet, and records the owner of the state
// directory.
func (s *Scaler) claimStateDir(at places) error {
	from, err := s.formerStateDir()
	if err != nil || s.config.Place == "" || !s.keepsStates() {
		return err
	}
	if from != "" {
		if err := os.Remove(at.states); errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("moving the states from %s: %s already contains states: keep only the current states, in one of the two directories", from, at.states)
		} else if err != nil {
			return fmt.Errorf("moving the states from %s: %w", from, err)
		}
		if err := os.Rename(filepath.Join(from, statesDir), at.states); err != nil {
			return fmt.Errorf("moving the states from %s: %w", from, err)
		}
		s.config.Progress(topology.HostID{}, fmt.Sprintf("the fleet was moved to %s: moved its states from %s to %s", s.config.Place, from, at.states))
	}

	name := filepath.Join(s.config.StateDir, ownerFile)
	content, err := json.Marshal(owner{ClusterID: s.config.ClusterID, Fleet: s.config.Place})
	if err == nil {
		if had, err := os.ReadFile(name); err == nil && string(had) == string(content) {
			return nil
		}
		err = renameio.WriteFile(name, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing the owner of the states: %w", err)
	}
	return nil
}
