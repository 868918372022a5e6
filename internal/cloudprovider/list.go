package cloudprovider

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// snapshotLag is the age from which a VM that is missing in Proxmox counts as deleted, because
// the snapshot of Proxmox is slightly outdated.
const snapshotLag = 2 * time.Minute

// Get returns the NodeClaim with a provider ID. It returns a NodeClaimNotFoundError only
// if the VM certainly does not exist.
func (c *CloudProvider) Get(ctx context.Context, providerID string) (claim *karpv1.NodeClaim, err error) {
	defer func() { err = translate(err) }()
	region, vmid, err := fleet.ParseProviderID(providerID)
	if err != nil {
		return nil, err
	}
	claims, view, err := c.all(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", providerID, err)
	}
	if i := slices.IndexFunc(claims, func(claim *karpv1.NodeClaim) bool { return claim.Status.ProviderID == providerID }); i >= 0 {
		return claims[i], nil
	}
	if doubt := view.doubt(guestID{region, vmid}); doubt != "" {
		return nil, fmt.Errorf("finding %s: cannot determine whether it exists: %s", providerID, doubt)
	}
	return nil, &goneError{providerID}
}

// List returns the NodeClaims of all VMs except standby VMs: desired VMs, created or not,
// VMs being removed, and existing VMs without a file. A VM whose host cannot be read counts
// as existing.
func (c *CloudProvider) List(ctx context.Context) ([]*karpv1.NodeClaim, error) {
	claims, _, err := c.all(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing vms: %w", err)
	}
	return claims, nil
}

func (c *CloudProvider) all(ctx context.Context) ([]*karpv1.NodeClaim, *guestView, error) {
	// Read the fleet first, so that a VM created meanwhile is in both.
	states, err := c.config.Fleet.States(ctx)
	if err != nil {
		return nil, nil, err
	}
	snapshot, err := c.config.Recent(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("reading Proxmox: %w", err)
	}
	view := c.view(snapshot)
	known := map[fleet.Key]bool{}
	var claims []*karpv1.NodeClaim
	for i := range states {
		state := &states[i]
		known[state.VM.Key] = true
		if state.VM.Standby {
			continue
		}
		if state.Phase == scaler.PhaseMade && c.config.Clock.Since(state.Since) > snapshotLag && view.gone(&state.VM) {
			continue // the VM was deleted by another client
		}
		claim := scheduling.Launched(state.VM, c.config.Types)
		claim.Labels[corev1.LabelArchStable] = scheduling.Arch(snapshot, state.VM.Host)
		if state.Phase == scaler.PhaseRemoving {
			claim.DeletionTimestamp = &metav1.Time{Time: state.Since}
		}
		claims = append(claims, claim)
	}
	for _, key := range slices.Sorted(maps.Keys(view.own)) {
		if known[key] {
			continue
		}
		listed := map[guestID]bool{}
		for _, guest := range view.own[key] {
			if !listed[guest.guestID] {
				listed[guest.guestID] = true
				claims = append(claims, stray(key, guest))
			}
		}
	}
	slices.SortStableFunc(claims, func(a, b *karpv1.NodeClaim) int { return cmp.Compare(a.Status.ProviderID, b.Status.ProviderID) })
	return claims, view, nil
}

// stray returns the NodeClaim of a guest of ours that has no file.
func stray(key fleet.Key, guest ownGuest) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	claim.Name = guest.name
	claim.Annotations = map[string]string{v1alpha1.AnnotationVM: guest.name, v1alpha1.AnnotationKey: string(key)}
	claim.Labels = map[string]string{
		corev1.LabelHostname:       guest.name,
		corev1.LabelTopologyRegion: string(guest.host.Region),
		corev1.LabelTopologyZone:   string(guest.host.Host),
	}
	claim.Status.ProviderID = fleet.ProviderID(guest.region, guest.vmid)
	return claim
}

// guestView contains a snapshot's guests of one installation, and records which hosts and
// regions could not be read completely.
type guestView struct {
	// own are the guests with the installation's marker, by key. Several can have the same
	// key: clones that users made of a VM, and a VM that is seen on two hosts while it is
	// migrated.
	own map[fleet.Key][]ownGuest
	// unread are the guests of hosts that could not be read. Their owner is unknown.
	unread map[guestID]bool
	// unmarked are the names of guests that could be read and have no marker.
	unmarked map[guestID]string
	// quorate are the regions whose guest list is reliable. In hidden regions, the list
	// contains only the guests that the credential may see.
	quorate, hidden map[topology.RegionName]bool
	// read are the hosts that could be read.
	read map[topology.HostID]bool
}

// guestID is a guest's VMID with its region.
type guestID struct {
	region topology.RegionName
	vmid   fleet.VMID
}

// ownGuest is a guest of the installation with the host where it was seen.
type ownGuest struct {
	guestID
	host topology.HostID
	name string
	// moving is set while the guest is migrated to another host, or cloned on the host of its
	// template.
	moving bool
}

// view returns the guests of a snapshot.
func (c *CloudProvider) view(snapshot *topology.Snapshot) *guestView {
	type viewKey struct{}
	view, _ := memoized(&c.memo, snapshot, viewKey{}, func() (*guestView, error) { return viewGuests(snapshot, c.config.ClusterID), nil })
	return view
}

func viewGuests(snapshot *topology.Snapshot, clusterID string) *guestView {
	view := &guestView{
		own: map[fleet.Key][]ownGuest{}, unread: map[guestID]bool{}, unmarked: map[guestID]string{},
		quorate: map[topology.RegionName]bool{}, hidden: map[topology.RegionName]bool{}, read: map[topology.HostID]bool{},
	}
	for i := range snapshot.Regions {
		region := &snapshot.Regions[i]
		inRegion := func(host topology.Host) bool { return host.Region == region.Name }
		if !slices.ContainsFunc(snapshot.Hosts, inRegion) {
			continue // it was never read
		}
		view.quorate[region.Name] = region.Quorate
		view.hidden[region.Name] = region.HidesGuests
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		read := host.Online && host.Problem == ""
		view.read[host.ID()] = read
		for j := range host.Guests {
			guest := &host.Guests[j]
			id := guestID{host.Region, fleet.VMID(guest.VMID)}
			switch {
			case guest.Key != "" && guest.ClusterID == clusterID:
				key := fleet.Key(guest.Key)
				view.own[key] = append(view.own[key], ownGuest{guestID: id, host: host.ID(), name: guest.Name, moving: guest.Lock == "migrate" || guest.Lock == "clone"})
			case guest.Key != "":
			case read:
				view.unmarked[id] = guest.Name
			default:
				view.unread[id] = true
			}
		}
	}
	return view
}

// seen returns the places where the VM with a key and a VMID was seen. A clone of it, which
// has the same key, has another VMID: see fleet.VM.IsGuest.
func (v *guestView) seen(key fleet.Key, at guestID) []ownGuest {
	return slices.DeleteFunc(slices.Clone(v.own[key]), func(g ownGuest) bool { return g.guestID != at })
}

// gone reports whether a VM that was created certainly no longer exists. A guest with the
// VM's VMID and name but without a marker counts as the VM.
func (v *guestView) gone(vm *fleet.VM) bool {
	region := vm.Host.Region
	at := guestID{region, vm.VMID}
	return len(v.seen(vm.Key, at)) == 0 && v.doubt(at) == "" && v.unmarked[at] != vm.Name && !v.hidden[region] && v.read[vm.Host]
}

// doubt returns why a guest with that VMID may exist although it is not visible, or "".
func (v *guestView) doubt(at guestID) string {
	quorate, known := v.quorate[at.region]
	switch {
	case !known:
		return fmt.Sprintf("region %s was not read: run numaform status for the reason; "+
			"if the region is not under clusters in numaform.yaml, add it until its last NodeClaim is deleted", at.region)
	case !quorate:
		return fmt.Sprintf("region %s has lost its quorum: start its offline hosts", at.region)
	case v.unread[at]:
		return fmt.Sprintf("guest %d of region %s is on a host that cannot be read: run numaform status for the reason; "+
			"remove the host from the Proxmox cluster only if it is permanently lost", at.vmid, at.region)
	}
	return ""
}

// left reports whether the VM of a NodeClaim was seen only on hosts other than home, and is
// not being migrated.
func (v *guestView) left(claim *karpv1.NodeClaim, home topology.HostID) bool {
	region, vmid, err := fleet.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return false // it has no VM yet
	}
	places := v.seen(keyOf(claim), guestID{region, vmid})
	return len(places) > 0 && !slices.ContainsFunc(places, func(p ownGuest) bool { return p.host == home || p.moving })
}
