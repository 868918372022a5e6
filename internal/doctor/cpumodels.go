package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

// cpuModels checks the classes' CPU models. Without its model, a VM is cloned but its
// configuration is then refused.
func (e *examination) cpuModels(ctx context.Context, r *Region, snapshot *topology.Snapshot) {
	var known []string
	mixed := false
	first := slices.IndexFunc(snapshot.Hosts, func(h topology.Host) bool { return h.Online })
	for i := range e.config.Classes {
		spec := &e.config.Classes[i].Spec
		if spec.CPUType == "" || spec.Region != "" && spec.Region != string(r.Name) || first < 0 {
			continue
		}
		if known == nil {
			var err error
			if known, err = r.Client.CPUModels(ctx, snapshot.Hosts[first].Name); err != nil {
				e.failed("cpu", string(r.Name), err)
				return
			}
			mixed = slices.ContainsFunc(snapshot.Hosts, func(h topology.Host) bool { return h.Arch != snapshot.Hosts[first].Arch })
		}
		where := fmt.Sprintf("class %s in %s", e.config.Classes[i].Name, r.Name)
		custom := strings.HasPrefix(spec.CPUType, "custom-")
		mend := "correct spec.cpuType; a custom model has the prefix custom-"
		if custom {
			mend = "add it to /etc/pve/virtual-guest/cpu-models.conf (from 9.2 on: Datacenter > Custom CPU Models), or correct spec.cpuType"
		}
		if slices.Contains(known, spec.CPUType) {
			e.ok("cpu", where, spec.CPUType+" exists")
		} else if custom || !mixed { // the answering host lists the models of its own architecture
			e.add(Finding{Check: "cpu", Status: Fail, Where: where, What: "there is no CPU model " + spec.CPUType, Mend: mend})
		}
	}
}
