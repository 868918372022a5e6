package proxmox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

// remembering is a host with guests that a client has read.
type remembering struct {
	*canned
	client *proxmox.Client
	// snapshot is the last snapshot.
	snapshot *topology.Snapshot
	now      time.Time
	// guests contains the entry of each guest in the cluster's list, by VMID; nil if the guest
	// is no longer listed.
	guests map[int]map[string]any
}

// newRemembering returns a host with a running VM 101, a running container 102, a stopped
// VM 103 and a template 104. The running ones were started an hour ago.
func newRemembering(t *testing.T) *remembering {
	t.Helper()
	r := &remembering{canned: newCanned(t), now: readAt, guests: map[int]map[string]any{}}
	r.list(101, map[string]any{"uptime": 3600})
	r.list(102, map[string]any{"type": "lxc", "uptime": 3600})
	r.list(103, map[string]any{"status": "stopped"})
	r.list(104, map[string]any{"status": "stopped", "template": 1})
	r.configure(101, map[string]any{"cores": 2, "memory": 2048, "affinity": "0-1"})
	r.configure(102, map[string]any{"cores": 2, "memory": 2048})
	r.configure(103, map[string]any{"cores": 2, "memory": 2048, "affinity": "2"})
	r.configure(104, map[string]any{"template": 1, "agent": 1, "scsi0": "local:base-104-disk-0,size=4G", "boot": "order=scsi0"})
	cfg := r.config()
	cfg.Now = func() time.Time { return r.now }
	r.client = newClient(t, cfg)
	var err error
	if r.snapshot, err = r.client.Snapshot(context.Background()); err != nil {
		t.Fatal(err)
	}
	return r
}

// list sets a guest's list entry; nil removes it.
func (r *remembering) list(vmid int, fields map[string]any) {
	r.guests[vmid] = nil
	if fields != nil {
		r.guests[vmid] = guestResource("pve-1", vmid, fields)
	}
	var all []any
	for _, entry := range r.guests {
		if entry != nil {
			all = append(all, entry)
		}
	}
	r.resources(all...)
}

// configure sets the configuration of a guest.
func (r *remembering) configure(vmid int, config map[string]any) {
	r.say(r.path(vmid), config)
}

func (r *remembering) path(vmid int) string {
	kind := "qemu"
	if entry := r.guests[vmid]; entry != nil {
		kind = entry["type"].(string)
	}
	return fmt.Sprintf("/nodes/pve-1/%s/%d/config?current=1", kind, vmid)
}

// read makes a new snapshot and returns the requests for it.
func (r *remembering) read(t *testing.T, read func(ctx context.Context) (*topology.Snapshot, error)) []string {
	t.Helper()
	r.mu.Lock()
	before := len(r.calls)
	r.mu.Unlock()
	var err error
	if r.snapshot, err = read(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := r.snapshot.Validate(); err != nil {
		t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := slices.Clone(r.calls[before:])
	slices.Sort(calls)
	return calls
}

func (r *remembering) update(t *testing.T) []string {
	t.Helper()
	return r.read(t, func(ctx context.Context) (*topology.Snapshot, error) { return r.client.Update(ctx, r.snapshot) })
}

func (r *remembering) refresh(t *testing.T, vmids ...fleet.VMID) []string {
	t.Helper()
	return r.read(t, func(ctx context.Context) (*topology.Snapshot, error) {
		return r.client.Refresh(ctx, r.snapshot, []topology.HostName{"pve-1"}, vmids...)
	})
}

// guest returns a guest of the last snapshot.
func (r *remembering) guest(t *testing.T, vmid int) topology.Guest {
	t.Helper()
	for _, guest := range r.snapshot.Hosts[0].Guests {
		if guest.VMID == vmid {
			return guest
		}
	}
	t.Fatalf("guest %d is not in the snapshot", vmid)
	return topology.Guest{}
}

// TestUpdateReadsWhatChanged checks that an update makes one request while nothing happens,
// and one more for each guest whose list entry shows a change.
func TestUpdateReadsWhatChanged(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(r *remembering)
		want   []string
	}{
		{name: "nothing", change: func(*remembering) {}},
		{name: "a guest has a new name", change: func(r *remembering) { r.list(103, map[string]any{"status": "stopped", "name": "new"}) }, want: []string{"103"}},
		{name: "a guest has new tags", change: func(r *remembering) { r.list(101, map[string]any{"uptime": 3660, "tags": "a"}) }, want: []string{"101"}},
		{name: "a guest has more memory", change: func(r *remembering) { r.list(102, map[string]any{"type": "lxc", "uptime": 3660, "maxmem": 4 << 30}) }, want: []string{"102"}},
		{name: "a guest is locked", change: func(r *remembering) { r.list(103, map[string]any{"status": "stopped", "lock": "clone"}) }, want: []string{"103"}},
		{name: "a guest was started", change: func(r *remembering) { r.list(103, map[string]any{"uptime": 1}) }, want: []string{"103"}},
		{name: "a guest was stopped", change: func(r *remembering) { r.list(101, map[string]any{"status": "stopped"}) }, want: []string{"101"}},
		{name: "a guest was restarted", change: func(r *remembering) { r.list(101, map[string]any{"uptime": 30}) }, want: []string{"101"}},
		{name: "a guest was restarted just before it was read", change: func(r *remembering) { r.list(101, map[string]any{"uptime": 61}) }, want: []string{"101"}},
		{name: "its state is unknown", change: func(r *remembering) { r.list(101, map[string]any{"status": "unknown"}) }, want: []string{"101"}},
		{name: "a guest is new", change: func(r *remembering) {
			r.list(105, map[string]any{"uptime": 3})
			r.configure(105, map[string]any{"cores": 1, "memory": 512})
		}, want: []string{"105"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRemembering(t)
			r.now = r.now.Add(time.Minute)
			tt.change(r)
			want := []string{"/cluster/resources"}
			for _, vmid := range tt.want {
				var n int
				_, _ = fmt.Sscan(vmid, &n)
				want = append(want, r.path(n))
			}
			if diff := cmp.Diff(want, r.update(t)); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			whole, err := newClient(t, r.config()).Snapshot(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(whole.Hosts[0].Guests, r.snapshot.Hosts[0].Guests); diff != "" {
				t.Errorf("the guests are not the existing ones (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(whole.Hosts[0].Templates, r.snapshot.Hosts[0].Templates); diff != "" {
				t.Errorf("the templates are not the existing ones (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUpdateNoticesAMissingPrivilege checks that the privileges are read when a guest is no
// longer listed, and at each update until the missing privileges are back.
func TestUpdateNoticesAMissingPrivilege(t *testing.T) {
	t.Parallel()
	const permissions = "/access/permissions"
	r := newRemembering(t)
	r.list(103, nil)
	if calls := r.update(t); !slices.Contains(calls, permissions) || r.snapshot.Regions[0].HidesGuests {
		t.Errorf("a guest was removed: requests %v, regions %+v", calls, r.snapshot.Regions)
	}
	r.list(101, nil)
	r.say(permissions, map[string]any{"/vms": map[string]any{"VM.Allocate": 1}})
	for range 2 {
		if calls := r.update(t); !slices.Contains(calls, permissions) || !r.snapshot.Regions[0].HidesGuests {
			t.Errorf("a guest is hidden: requests %v, regions %+v", calls, r.snapshot.Regions)
		}
	}
	r.say(permissions, map[string]any{"/vms": map[string]any{"VM.Audit": 1}})
	r.update(t)
	if calls := r.update(t); slices.Contains(calls, permissions) || r.snapshot.Regions[0].HidesGuests {
		t.Errorf("no guest is hidden now: requests %v, regions %+v", calls, r.snapshot.Regions)
	}
}

// TestUpdateReadsFlawsAgain checks that an unusable template is read again, so that a
// correction takes effect before the next complete snapshot.
func TestUpdateReadsFlawsAgain(t *testing.T) {
	t.Parallel()
	r := newRemembering(t)
	r.list(104, map[string]any{"status": "stopped", "template": 1, "tags": "x"})
	r.configure(104, map[string]any{"template": 1, "tags": "x", "scsi0": "local:base-104-disk-0,size=4G", "boot": "order=scsi0"})
	r.update(t)
	if problem := r.snapshot.Hosts[0].Templates[0].Problem; !strings.Contains(problem, "guest agent is disabled") {
		t.Errorf("the template has problem %q", problem)
	}
	r.configure(104, map[string]any{"template": 1, "tags": "x", "agent": 1, "scsi0": "local:base-104-disk-0,size=4G", "boot": "order=scsi0"})
	r.update(t)
	if problem := r.snapshot.Hosts[0].Templates[0].Problem; problem != "" {
		t.Errorf("the corrected template has problem %q", problem)
	}
}

// TestUpdateReadsLockedGuests checks that a guest is read while it has a lock and once
// after that, even if only its configuration shows the lock.
func TestUpdateReadsLockedGuests(t *testing.T) {
	t.Parallel()
	r := newRemembering(t)
	for _, listed := range []string{"backup", ""} {
		r.list(103, map[string]any{"status": "stopped", "name": "n" + listed, "lock": listed})
		r.configure(103, map[string]any{"name": "n" + listed, "cores": 2, "memory": 2048, "lock": "backup"})
		for range 2 {
			if calls := r.update(t); !slices.Contains(calls, r.path(103)) || r.guest(t, 103).Lock != "backup" {
				t.Errorf("listed with lock %q: requests %v, guest %+v", listed, calls, r.guest(t, 103))
			}
		}
	}
	r.configure(103, map[string]any{"name": "n", "cores": 2, "memory": 2048})
	if r.update(t); r.guest(t, 103).Lock != "" {
		t.Errorf("guest %+v", r.guest(t, 103))
	}
	if calls := r.update(t); slices.Contains(calls, r.path(103)) {
		t.Errorf("requests %v", calls)
	}
}

// TestUpdateAsksHostsInTrouble checks that a host that is listed with a problem, or that
// had one, is queried.
func TestUpdateAsksHostsInTrouble(t *testing.T) {
	t.Parallel()
	const status = "/nodes/pve-1/status"
	r := newRemembering(t)
	node := nodeResource("pve-1")
	node["status"] = "unknown"
	healthy := r.answers["/cluster/resources"]
	r.say("/cluster/resources", append([]any{node}, healthy[0].data.([]any)[1:]...))
	r.refuse(status, 595, "No route to host")
	if calls := r.update(t); !slices.Contains(calls, status) || r.snapshot.Hosts[0].Problem == "" || r.snapshot.Hosts[0].Online {
		t.Errorf("requests %v, host %+v", calls, r.snapshot.Hosts[0])
	}
	r.answer("/cluster/resources", healthy...)
	if calls := r.update(t); !slices.Contains(calls, status) || r.snapshot.Hosts[0].Problem == "" {
		t.Errorf("requests %v, host %+v", calls, r.snapshot.Hosts[0])
	}
	r.say(status, map[string]any{"cpuinfo": map[string]any{}})
	if calls := r.update(t); !slices.Contains(calls, status) || r.snapshot.Hosts[0].Problem != "" || !r.snapshot.Hosts[0].Online {
		t.Errorf("requests %v, host %+v", calls, r.snapshot.Hosts[0])
	}
	if calls := r.update(t); slices.Contains(calls, status) {
		t.Errorf("requests %v", calls)
	}
}

// TestRefreshAsksTheHost checks that Refresh reads every guest that may have other CPUs
// than before, and queries the host itself, because the cluster's list is older.
func TestRefreshAsksTheHost(t *testing.T) {
	t.Parallel()
	r := newRemembering(t)
	r.now = r.now.Add(30 * time.Second)
	always := []string{"/access/permissions", "/cluster/resources", "/nodes/pve-1/lxc", "/nodes/pve-1/qemu"}
	want := append(slices.Clone(always), r.path(103), r.path(104))
	r.configure(103, map[string]any{"cores": 2, "memory": 2048, "affinity": "3"})
	if diff := cmp.Diff(want, r.refresh(t)); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if pins := r.guest(t, 103).Pins; !pins.Equal(topology.CPUs(3)) {
		t.Errorf("a stopped guest that was pinned elsewhere has pins %s", pins)
	}

	// Guest 101 was restarted ten seconds ago with other pins, and the cluster's list is
	// older.
	listed := r.answers["/cluster/resources"]
	r.list(101, map[string]any{"uptime": 10})
	r.answer("/cluster/resources", listed...)
	r.configure(101, map[string]any{"cores": 2, "memory": 2048, "affinity": "4-5"})
	if calls := r.refresh(t); !slices.Contains(calls, r.path(101)) || !r.guest(t, 101).Pins.Equal(topology.CPUs(4, 5)) {
		t.Errorf("requests %v, guest %+v", calls, r.guest(t, 101))
	}

	// The cluster's list does not contain the new VM 105 yet, but still contains container
	// 102, which no longer exists.
	listed = r.answers["/cluster/resources"]
	r.list(105, map[string]any{"uptime": 1})
	r.configure(105, map[string]any{"cores": 2, "memory": 2048, "affinity": "6"})
	r.list(102, nil)
	r.refuse("/nodes/pve-1/lxc/102/config?current=1", 500, "Configuration file 'nodes/pve-1/lxc/102.conf' does not exist")
	r.answer("/cluster/resources", append(slices.Clone(listed), r.answers["/cluster/resources"]...)...)
	r.refresh(t)
	if !r.guest(t, 105).Pins.Equal(topology.CPUs(6)) || len(r.snapshot.Hosts[0].Guests) != 4 {
		t.Errorf("guests %+v", r.snapshot.Hosts[0].Guests)
	}
}

// TestRefreshReadsRequestedGuests checks that a running guest is read if its VMID is
// requested, because no list shows a change of its description.
func TestRefreshReadsRequestedGuests(t *testing.T) {
	t.Parallel()
	r := newRemembering(t)
	r.now = r.now.Add(time.Minute)
	r.list(101, map[string]any{"uptime": 3660})
	marker := fleet.Marker{ClusterID: "prod", Key: fleet.Key(strings.Repeat("0a", 16))}
	r.configure(101, map[string]any{"cores": 2, "memory": 2048, "affinity": "0-1", "description": marker.String()})
	if r.refresh(t); r.guest(t, 101).Key != "" {
		t.Error("the guest was read although nothing shows a change")
	}
	if r.refresh(t, 101); r.guest(t, 101).Key != string(marker.Key) {
		t.Errorf("guest %+v", r.guest(t, 101))
	}
}

// TestRefreshOfASilentHost checks that a refresh reports a host that cannot be reached, and
// keeps its guests.
func TestRefreshOfASilentHost(t *testing.T) {
	t.Parallel()
	r := newRemembering(t)
	r.refuse("/nodes/pve-1/qemu", 595, "No route to host")
	r.refresh(t)
	if host := r.snapshot.Hosts[0]; host.Online || !strings.Contains(host.Problem, "cannot be reached") || len(host.Guests) != 4 {
		t.Errorf("host %+v", host)
	}
}
