package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// classStorages queries each host for the storages that the classes use on it.
func (e *examination) classStorages(ctx context.Context, r *Region, snapshot *topology.Snapshot) {
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		disks, seeds := e.storagesOn(host, snapshot)
		if host.Problem != "" || len(disks)+len(seeds) == 0 {
			continue
		}
		where := host.ID().String()
		states, err := r.Client.StoragesOf(ctx, host.Name)
		if err != nil {
			e.failed("storage", where, err)
			continue
		}
		usable := true
		for _, name := range distinct(slices.Concat(disks, seeds)) {
			if finding, ok := unusable(name, host.Name, states); ok {
				finding.Where = where
				e.add(finding)
				usable = false
			}
		}
		if !usable {
			continue
		}
		what := "disks on " + orNone(disks)
		if len(seeds) > 0 {
			what += "; seeds on " + strings.Join(seeds, ", ")
			// pve-storage 9.1.7, PVE/API2/Storage/Status.pm:637-664
			if len(snapshot.Hosts) > 1 && slices.ContainsFunc(seeds, func(name string) bool { return !states[name].Shared }) {
				what += ", where the host that gets the upload copies them by ssh"
			}
		}
		e.ok("storage", where, what)
	}
}

// unusable explains why a host cannot use a storage, if so.
func unusable(name string, host topology.HostName, states map[string]proxmox.StorageState) (Finding, bool) {
	finding := Finding{Check: "storage", Status: Warn} // the class fails if no host is left
	switch state, there := states[name]; {
	case !there:
		finding.What = fmt.Sprintf("storage %q does not exist, or numaform's user may not see it", name)
		finding.Mend = fmt.Sprintf("look for it with `pvesm status`; if it exists, grant Datastore.Audit on /storage/%s", name)
	case !state.Enabled:
		finding.What = fmt.Sprintf("storage %q exists, but is disabled or not for this host", name)
		finding.Mend = fmt.Sprintf("pvesm set %s --disable 0, and add %s to its nodes, or name another storage in the class", name, host)
	case !state.Active:
		finding.What = fmt.Sprintf("storage %q cannot be used now, though it is enabled", name)
		finding.Mend = fmt.Sprintf("run `pvesm status --storage %s` on the host", name)
	default:
		return finding, false
	}
	return finding, true
}

// storagesOn returns the storages for disks and seeds on the host that classes name, or use
// by default.
func (e *examination) storagesOn(host *topology.Host, snapshot *topology.Snapshot) (disks, seeds []string) {
	used := [2]map[string]bool{{}, {}}
	for i := range e.config.Classes {
		class := &e.config.Classes[i]
		if !scheduling.Allows(class, host.ID()) {
			continue
		}
		if class.Spec.BootDevice != nil {
			used[0][class.Spec.BootDevice.Storage] = true
		}
		for _, disk := range class.Spec.DataDisks {
			used[0][disk.Storage] = true
		}
		needs, _ := scheduling.NeedsOf(class, snapshot, host.ID())
		for _, name := range needs.Disks {
			used[0][name] = true
		}
		seed := class.Spec.Metadata.Storage
		if found, ok := scaler.SeedStorage(host, needs.Seed); ok {
			seed = found
		}
		used[1][seed] = true
	}
	delete(used[0], "")
	delete(used[1], "")
	return slices.Sorted(maps.Keys(used[0])), slices.Sorted(maps.Keys(used[1]))
}
