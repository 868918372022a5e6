package garbage

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// orphans reports guests that carry our marker but are not desired, among them clones of
// desired VMs. It does not remove them, because their files may be restored, and a VMID does
// not prove ownership.
type orphans struct {
	config   Config
	lasting  since[orphanID]
	reported map[orphanID]bool

	// mu guards the field below.
	mu     sync.Mutex
	byHost map[topology.HostID]int
}

func (*orphans) name() string { return "orphans" }

func (*orphans) every() time.Duration { return 3 * period }

func (*orphans) concerns() bool { return true }

// orphanID identifies an orphan: several clones can have one key.
type orphanID struct {
	region topology.RegionName
	vmid   int
	key    fleet.Key
}

// orphan is an undesired guest. If it is a clone of a desired VM, original is the VM's name.
type orphan struct {
	topology.Guest
	host     topology.HostID
	original string
}

func (o *orphans) run(ctx context.Context, v *view) error {
	snapshot, err := o.config.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("reading proxmox: %w", err)
	}
	found := map[orphanID]orphan{}
	var ids []orphanID
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		for _, g := range host.Guests {
			id := orphanID{region: host.Region, vmid: g.VMID, key: fleet.Key(g.Key)}
			if g.ClusterID != o.config.ClusterID || g.Template {
				continue
			}
			undesired := orphan{Guest: g, host: host.ID()}
			if state, desired := v.vms[id.key]; desired {
				if int(state.VM.VMID) == g.VMID && state.VM.Host.Region == host.Region {
					continue
				}
				undesired.original = state.VM.Name
			}
			found[id] = undesired
			ids = append(ids, id)
		}
	}
	lasting := o.lasting.lasting(ids, v.now, grace)
	byHost := map[topology.HostID]int{}
	for _, id := range ids {
		if lasting[id] {
			byHost[found[id].host]++
			o.report(ctx, v, id, found[id])
		}
	}
	maps.DeleteFunc(o.reported, func(id orphanID, _ bool) bool { return !lasting[id] })
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byHost = byHost
	return nil
}

// report reports an orphan once, and how to fix it.
func (o *orphans) report(ctx context.Context, v *view, id orphanID, g orphan) {
	if o.reported[id] {
		return
	}
	o.reported[id] = true
	log.FromContext(ctx).Info("found vm that is not in any file of the fleet", logkey.VM, g.Name, logkey.VMID, g.VMID,
		logkey.Host, g.host.String(), logkey.Key, g.Key)
	object := o.config.Self
	if node := v.nodes[g.Name]; node != nil {
		object = node
	}
	if object == nil {
		return
	}
	problem := "but is not in any file of the fleet: restore its file from version control, or destroy the VM manually; " +
		"a later change on its host deletes the VM if the state contains it, or restores its file if only the history contains it"
	if g.original != "" {
		problem = fmt.Sprintf("with the key of VM %s, because it is a clone of it: remove the line that begins with numaform/ from its description", g.original)
	}
	o.config.Recorder.Publish(warning(object, ReasonOrphan, fmt.Sprintf("VM %d (%s) on %s has the marker of this numaform installation, %s",
		g.VMID, g.Name, g.host, problem), fmt.Sprintf("%d/%s", g.VMID, g.Key)))
}
