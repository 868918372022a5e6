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

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/workdir"
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

// states creates the directory of a host's states, and returns the backend's
// configuration. A dry run gets a copy of a local state, so that it behaves like an
// apply.
func (s *Scaler) states(change *Change, at places, shard fleet.Shard) (map[string]string, error) {
	home := at.state(shard, stateFile)
	if err := workdir.Private(filepath.Dir(home)); err != nil {
		return nil, err
	}
	if !s.keepsStates() {
		return nil, nil
	}
	if at.dry {
		if err := s.copyState(home, shard); err != nil {
			return nil, fmt.Errorf("copying the state of %s: %w", shard, err)
		}
	}
	if _, err := os.Lstat(home); errors.Is(err, fs.ErrNotExist) {
		s.reportLost(change, at, shard)
	}
	return map[string]string{"path": home}, nil
}

// copyState copies the state of a host from its place, or from the place that an older
// version used.
func (s *Scaler) copyState(to string, shard fleet.Shard) error {
	kept, err := s.readPlaces()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(kept.state(shard, stateFile))
	if errors.Is(err, fs.ErrNotExist) && !kept.migrated() {
		old := s.oldState(shard)
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

// reportLost reports that VMs of the fleet exist but no state contains them: they are
// imported by their markers and keys, not created again.
func (s *Scaler) reportLost(change *Change, at places, shard fleet.Shard) {
	guests := locate(change.Snapshot)
	alive := 0
	for _, vm := range change.Before.VMs {
		guest, exists := guests[guestID{vm.Host.Region, vm.VMID}]
		if vm.Host == shard && exists && guest.Key == string(vm.Key) {
			alive++
		}
	}
	if alive == 0 {
		return
	}
	home := filepath.Join(s.config.StateDir, statesDir)
	if !at.dry {
		home = filepath.Dir(at.state(shard, stateFile))
	}
	s.config.Progress(shard, fmt.Sprintf("there is no state in %s, and %d VMs of the fleet exist: they are imported by their markers; "+
		"if their state lies elsewhere, because the fleet or state_dir was moved, end this and move the state there", home, alive))
}

// belongs identifies the fleet whose states are in a state directory.
type belongs struct {
	ClusterID string `json:"cluster_id"`
	// Fleet is the directory of the fleet.
	Fleet string `json:"fleet"`
}

// belongsFile is the file that contains it.
const belongsFile = "fleet.json"

// MovedFleetError reports that a state directory belongs to another copy of the fleet.
type MovedFleetError struct{ StateDir, Fleet, Other string }

// Error says where the copies are and how to fix it.
func (e *MovedFleetError) Error() string {
	return fmt.Sprintf("states in %s: they belong to the fleet in %s, which still exists, and this one is in %s: if the fleet was copied, work with one of "+
		"the copies only and remove the other; if they are two fleets, give each a clusterID and a state_dir of its own", e.StateDir, e.Other, e.Fleet)
}

// former finds the state directory of a fleet that was moved, because the default
// directory is named after the fleet's place. It returns the directory with the states,
// or "" if they are where they belong.
func (s *Scaler) former() (string, error) {
	if s.config.Place == "" || !s.keepsStates() {
		return "", nil
	}
	said, err := readBelongs(s.config.StateDir)
	if err != nil {
		return "", err
	}
	if said != nil {
		return "", s.unlessCopied(said)
	}
	if !strings.HasPrefix(filepath.Base(s.config.StateDir), s.config.ClusterID+"-") {
		return "", nil
	}
	found, err := s.abandoned()
	if err != nil || len(found) == 0 {
		return "", err
	}
	if len(found) > 1 {
		return "", fmt.Errorf("looking for the states of the fleet in %s: those of cluster %s that belong to no fleet any more are in %s: "+
			"set state_dir in numaform.yaml to the right one, or remove the others", s.config.Place, s.config.ClusterID, strings.Join(found, ", "))
	}
	return found[0], nil
}

// unlessCopied returns an error if a state directory belongs to another existing fleet.
func (s *Scaler) unlessCopied(said *belongs) error {
	if said.Fleet == s.config.Place || !s.isFleet(said.Fleet) {
		return nil
	}
	return &MovedFleetError{StateDir: s.config.StateDir, Fleet: s.config.Place, Other: said.Fleet}
}

// abandoned returns the default state directories with states of this cluster whose fleet
// no longer exists. If the fleet exists, this one is a copy.
func (s *Scaler) abandoned() (found []string, err error) {
	others, err := filepath.Glob(filepath.Join(filepath.Dir(s.config.StateDir), s.config.ClusterID+"-*", belongsFile))
	if err != nil {
		return nil, fmt.Errorf("looking for states of cluster %s: %w", s.config.ClusterID, err)
	}
	for _, other := range others {
		dir := filepath.Dir(other)
		said, err := readBelongs(dir)
		if err != nil || said == nil || said.ClusterID != s.config.ClusterID || !hasStates(dir) {
			continue
		}
		if s.isFleet(said.Fleet) {
			return nil, &MovedFleetError{StateDir: dir, Fleet: s.config.Place, Other: said.Fleet}
		}
		found = append(found, dir)
	}
	return found, nil
}

// isFleet reports whether a directory still contains another fleet.
func (s *Scaler) isFleet(dir string) bool {
	here, err := os.Stat(s.config.Place)
	if err != nil {
		here = nil
	}
	there, err := os.Stat(dir)
	if err != nil || (here != nil && os.SameFile(here, there)) {
		return false
	}
	_, err = os.Stat(filepath.Join(dir, belongsFile))
	return err == nil
}

func hasStates(dir string) bool {
	states, err := filepath.Glob(filepath.Join(dir, statesDir, "*", "*", stateFile))
	return err == nil && len(states) > 0
}

func readBelongs(dir string) (*belongs, error) {
	name := filepath.Join(dir, belongsFile)
	content, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // a new directory has no record
	}
	var said belongs
	if err == nil {
		err = json.Unmarshal(content, &said)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w: remove it if the states beside it are those of this fleet", name, err)
	}
	return &said, nil
}

// readPlaces returns the places of the states for reading.
func (s *Scaler) readPlaces() (places, error) {
	dir, err := s.former()
	if dir == "" {
		dir = s.config.StateDir
	}
	return places{states: filepath.Join(dir, statesDir)}, err
}

// settleIn moves the states of a moved fleet, and records the owner of the state
// directory.
func (s *Scaler) settleIn(at places) error {
	from, err := s.former()
	if err != nil || s.config.Place == "" || !s.keepsStates() {
		return err
	}
	if from != "" {
		if err := os.Remove(at.states); err != nil {
			return fmt.Errorf("moving the states from %s: %w: %s has some already, remove one of both", from, err, at.states)
		}
		if err := os.Rename(filepath.Join(from, statesDir), at.states); err != nil {
			return fmt.Errorf("moving the states from %s: %w", from, err)
		}
		s.config.Progress(fleet.Shard{}, fmt.Sprintf("the fleet was moved to %s: moved its states from %s to %s", s.config.Place, from, at.states))
	}
	content, err := json.Marshal(belongs{ClusterID: s.config.ClusterID, Fleet: s.config.Place})
	if err != nil {
		return fmt.Errorf("writing whose states these are: %w", err)
	}
	name := filepath.Join(s.config.StateDir, belongsFile)
	if had, err := os.ReadFile(name); err == nil && string(had) == string(content) {
		return nil
	}
	if err := renameio.WriteFile(name, content, 0o600); err != nil {
		return fmt.Errorf("writing whose states these are: %w", err)
	}
	return nil
}
