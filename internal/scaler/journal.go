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
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// journal remembers which shards have a change under way, so that the next run
// looks at them even if nothing else asks for it.
type journal struct{ dir string }

// entry is what the journal keeps of one shard.
type entry struct {
	// Removed are the VMs whose files were taken out on purpose.
	Removed []fleet.VM `json:"removed,omitempty"`
	// open is set if there is an entry.
	open bool
}

func (s *Scaler) journal() journal {
	return journal{dir: filepath.Join(s.config.Store.Path(), store.PrivateDir, "journal")}
}

func (j journal) path(shard fleet.Shard) string {
	return filepath.Join(j.dir, string(shard.Region), string(shard.Host)+".json")
}

// begin notes that a change of the shard starts, and adds to what it removes.
func (j journal) begin(shard fleet.Shard, removed []fleet.VM) error {
	current, err := j.read(shard)
	if err != nil {
		return err
	}
	current.Removed = append(current.Removed, removed...)
	text, err := json.MarshalIndent(current, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the journal of %s: %w", shard, err)
	}
	if err := os.MkdirAll(filepath.Dir(j.path(shard)), 0o755); err != nil {
		return fmt.Errorf("writing the journal of %s: %w", shard, err)
	}
	if err := renameio.WriteFile(j.path(shard), text, 0o644); err != nil {
		return fmt.Errorf("writing the journal of %s: %w", shard, err)
	}
	return nil
}

// end notes that nothing of the shard is under way any more.
func (j journal) end(shard fleet.Shard) error {
	if err := os.Remove(j.path(shard)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("ending the journal of %s: %w", shard, err)
	}
	return nil
}

func (j journal) read(shard fleet.Shard) (entry, error) {
	text, err := os.ReadFile(j.path(shard))
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, nil
	}
	if err != nil {
		return entry{}, fmt.Errorf("reading the journal of %s: %w", shard, err)
	}
	var current entry
	if err := json.Unmarshal(text, &current); err != nil {
		return entry{}, fmt.Errorf("reading the journal %s: %w: if a person wrote into it, delete it, then look at the plan of %s",
			j.path(shard), err, shard)
	}
	current.open = true
	return current, nil
}

// shards returns the shards with a change under way.
func (j journal) shards() ([]fleet.Shard, error) {
	var shards []fleet.Shard
	err := filepath.WalkDir(j.dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".json" {
			return err
		}
		shards = append(shards, fleet.Shard{
			Region: topology.RegionName(filepath.Base(filepath.Dir(name))),
			Host:   topology.HostName(strings.TrimSuffix(filepath.Base(name), ".json")),
		})
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the journal %s: %w", j.dir, err)
	}
	return shards, nil
}

// leaving returns the VMs whose removal is under way. An entry that cannot be read
// stops its own shard, when that is planned, and no other.
func (j journal) leaving() (map[fleet.Key]bool, error) {
	shards, err := j.shards()
	if err != nil {
		return nil, err
	}
	leaving := map[fleet.Key]bool{}
	for _, shard := range shards {
		current, err := j.read(shard)
		if err != nil {
			continue
		}
		for _, vm := range current.Removed {
			leaving[vm.Key] = true
		}
	}
	return leaving, nil
}
