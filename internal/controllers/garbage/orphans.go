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

// orphans reports guests that carry our marker but are not desired. It does not remove
// them, because their files may be restored, and a VMID does not prove ownership.
type orphans struct {
	config   Config
	lasting  since[fleet.Key]
	reported map[fleet.Key]bool

	// mu guards the field below.
	mu     sync.Mutex
	byHost map[topology.HostID]int
}

func (*orphans) name() string { return "orphans" }

func (*orphans) every() time.Duration { return 3 * period }

func (*orphans) concerns() bool { return true }

// orphan is an undesired guest.
type orphan struct {
	topology.Guest
	host topology.HostID
}

func (o *orphans) run(ctx context.Context, v *view) error {
	snapshot, err := o.config.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("reading proxmox: %w", err)
	}
	found := map[fleet.Key]orphan{}
	var keys []fleet.Key
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		for _, g := range host.Guests {
			key := fleet.Key(g.Key)
			if _, desired := v.vms[key]; desired || g.ClusterID != o.config.ClusterID || g.Template {
				continue
			}
			found[key] = orphan{Guest: g, host: host.ID()}
			keys = append(keys, key)
		}
	}
	lasting := o.lasting.lasting(keys, v.now, grace)
	byHost := map[topology.HostID]int{}
	for _, key := range keys {
		if lasting[key] {
			byHost[found[key].host]++
			o.report(ctx, v, found[key])
		}
	}
	maps.DeleteFunc(o.reported, func(key fleet.Key, _ bool) bool { return !lasting[key] })
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byHost = byHost
	return nil
}

// report reports an orphan once, and how to fix it.
func (o *orphans) report(ctx context.Context, v *view, g orphan) {
	if o.reported[fleet.Key(g.Key)] {
		return
	}
	o.reported[fleet.Key(g.Key)] = true
	log.FromContext(ctx).Info("found vm that is not in any file of the fleet", logkey.VM, g.Name, logkey.VMID, g.VMID,
		logkey.Host, g.host.String(), logkey.Key, g.Key)
	object := o.config.Self
	if node := v.nodes[g.Name]; node != nil {
		object = node
	}
	if object == nil {
		return
	}
	o.config.Recorder.Publish(warning(object, ReasonOrphan, fmt.Sprintf(
		"VM %d (%s) on %s has the marker of this numaform installation, but is not in any file of the fleet: restore its file from version control, "+
			"or destroy the VM manually; a later change on its host deletes the VM if the state contains it, or restores its file if only the history contains it", g.VMID, g.Name, g.host,
	), g.Key))
}
