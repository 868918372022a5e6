package scheduling

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// linkedMiB is what a linked clone needs at least to begin with.
const linkedMiB = 1024

// roomProblem says that the storage which takes the disks of clones is full. What a
// storage does not tell is no problem.
func (c *class) roomProblem(host *topology.Host, from *template) string {
	name := cmp.Or(c.base.Storage, from.Storage)
	i := slices.IndexFunc(host.Storages, func(s topology.Storage) bool { return s.Name == name })
	if i < 0 || from.Name == "" || host.Storages[i].TotalMiB == 0 {
		return ""
	}
	need, free := int64(linkedMiB), host.Storages[i].FreeMiB
	if c.base.Clone == fleet.CloneFull {
		need = max(need, 1024*max(c.base.DiskGiB, from.DiskGiB))
	}
	if free >= need {
		return ""
	}
	return fmt.Sprintf("has %d MiB free on storage %q, and a node's disk needs %d: make room there", free, name, need)
}
