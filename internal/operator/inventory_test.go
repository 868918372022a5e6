package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// twoRegions returns an inventory of two Proxmox clusters, and both clusters.
func twoRegions(t *testing.T, clk *testclock.FakePassiveClock) (*operator.Inventory, map[string]*pvesim.Server) {
	t.Helper()
	servers := map[string]*pvesim.Server{}
	text := "clusterID: test\nclusters:\n"
	for i, region := range []string{"east", "west"} {
		server := testenv.Proxmox(t, func(c *pvesim.Config) {
			c.Hosts = testenv.Hosts(t)
			for i := range c.Hosts {
				c.Hosts[i].Region = topology.RegionName(region)
			}
		})
		servers[region] = server
		text += "- {region: " + region + ", url: '" + server.URL() + "', ca_file: '" + testenv.CertFile(t, server) + "', token_id: '" + pvesim.DefaultToken +
			"', token_secret: '" + pvesim.DefaultTokenSecret + "', vmid_range: {lower: " + []string{"2000, upper: 2999", "3000, upper: 3999"}[i] + "}}\n"
	}
	path := filepath.Join(t.TempDir(), "numaform.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := operator.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	clients, err := config.Connect()
	if err != nil {
		t.Fatal(err)
	}
	return operator.NewInventory(config, clients, clk), servers
}

func snapshot(t *testing.T, inventory *operator.Inventory) *topology.Snapshot {
	t.Helper()
	snapshot, err := inventory.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// guests returns the number of guests of the host pve-1 of a region.
func guests(s *topology.Snapshot, region topology.RegionName) int {
	return len(s.Host(topology.HostID{Region: region, Host: "pve-1"}).Guests)
}

func TestInventoryReadsWhatIsOld(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakePassiveClock(time.Now())
	inventory, servers := twoRegions(t, clk)
	before := snapshot(t, inventory)
	if len(before.Hosts) != 4 || len(before.Regions) != 2 || before.Hosts[0].ReservedMemoryMiB == 0 {
		t.Fatalf("%d hosts in %d regions, %d MiB reserved on the first", len(before.Hosts), len(before.Regions), before.Hosts[0].ReservedMemoryMiB)
	}
	had := guests(before, "east")
	if err := servers["east"].PutGuest(pvesim.Guest{VMID: 300, Host: "pve-1", Config: map[string]string{"name": "new", "memory": "512"}}); err != nil {
		t.Fatal(err)
	}
	if got := guests(snapshot(t, inventory), "east"); got != had {
		t.Errorf("%d guests a moment later, want the %d of before: nothing is read again so soon", got, had)
	}
	inventory.Stale("east", "west")
	if got := guests(snapshot(t, inventory), "east"); got != had+1 {
		t.Errorf("%d guests once it is stale, want %d", got, had+1)
	}
	servers["east"].RemoveGuest(300)
	clk.SetTime(clk.Now().Add(11 * time.Second))
	if got := guests(snapshot(t, inventory), "east"); got != had {
		t.Errorf("%d guests after a while, want %d", got, had)
	}
}

// TestOnlyStaleRegionsAreRead checks that a change of one region does not read the others, also
// while a region does not respond.
func TestOnlyStaleRegionsAreRead(t *testing.T) {
	t.Parallel()
	inventory, servers := twoRegions(t, testclock.NewFakePassiveClock(time.Now()))
	snapshot(t, inventory)
	read := func(stale topology.RegionName) (regions []string, down int) {
		t.Helper()
		for _, server := range servers {
			server.ResetCalls()
		}
		inventory.Stale(stale)
		got := snapshot(t, inventory)
		for region, server := range servers {
			if len(server.Calls()) > 0 {
				regions = append(regions, region)
			}
		}
		for i := range got.Hosts {
			if got.Hosts[i].Problem != "" {
				down++
			}
		}
		return regions, down
	}
	if got, down := read("east"); !slices.Equal(got, []string{"east"}) || down > 0 {
		t.Errorf("read %q and %d hosts are down, want only east and none", got, down)
	}
	repair := servers["west"].AddFault(pvesim.Fault{Status: http.StatusForbidden})
	if got, down := read("west"); !slices.Equal(got, []string{"west"}) || down != 2 {
		t.Errorf("read %q and %d hosts are down, want only west, whose 2 hosts are", got, down)
	}
	repair()
	if got, down := read("east"); !slices.Equal(got, []string{"east"}) || down != 2 {
		t.Errorf("read %q and %d hosts are down, want only east: west has not responded since", got, down)
	}
	if got, down := read("west"); !slices.Equal(got, []string{"west"}) || down > 0 {
		t.Errorf("read %q and %d hosts are down, want only west and none", got, down)
	}
}

// TestRecentSnapshots checks that Recent reads no guest that has not changed, and that
// everything is read at the configured interval.
func TestRecentSnapshots(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakePassiveClock(time.Now())
	inventory, servers := twoRegions(t, clk)
	snapshot(t, inventory)
	east := servers["east"]
	recent := func(after time.Duration, want ...string) *topology.Snapshot {
		t.Helper()
		clk.SetTime(clk.Now().Add(after))
		east.ResetCalls()
		got, err := inventory.Recent(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, call := range east.Calls() {
			paths = append(paths, call.Path)
		}
		slices.Sort(paths)
		if diff := cmp.Diff(want, paths); diff != "" {
			t.Errorf("requests after %s (-want +got):\n%s", after, diff)
		}
		return got
	}
	listing := []string{"/cluster/resources", "/cluster/status"}
	recent(29 * time.Second)
	had := guests(recent(time.Second, listing...), "east")
	if err := east.PutGuest(pvesim.Guest{VMID: 300, Host: "pve-1", Config: map[string]string{"name": "new", "memory": "512"}}); err != nil {
		t.Fatal(err)
	}
	inventory.Stale("east", "west")
	if got := guests(recent(0, append(slices.Clone(listing), "/nodes/pve-1/qemu/300/config")...), "east"); got != had+1 {
		t.Errorf("%d guests, want %d", got, had+1)
	}
	recent(30*time.Second, listing...)
	east.ResetCalls()
	snapshot(t, inventory)
	if !slices.ContainsFunc(east.Calls(), func(c pvesim.Call) bool { return c.Path == "/nodes/pve-1/qemu" }) {
		t.Errorf("a decision was based on the cluster's list: %v", east.Calls())
	}
	clk.SetTime(clk.Now().Add(10 * time.Minute))
	east.ResetCalls()
	if _, err := inventory.Recent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(east.Calls(), func(c pvesim.Call) bool { return c.Path == "/nodes/pve-1/report" }) {
		t.Errorf("not everything was read after ten minutes: %v", east.Calls())
	}
}

// TestFullReadingsOfManyGuests checks that the complete readings of a region need ten requests
// a minute at most, however many guests it has.
func TestFullReadingsOfManyGuests(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakePassiveClock(time.Now())
	inventory, servers := twoRegions(t, clk)
	east := servers["east"]
	for vmid := 5000; vmid < 5250; vmid++ {
		if err := east.PutGuest(pvesim.Guest{VMID: vmid, Host: "pve-1", Config: map[string]string{"name": fmt.Sprintf("guest-%d", vmid), "memory": "512"}}); err != nil {
			t.Fatal(err)
		}
	}
	snapshot(t, inventory)
	read := func(after time.Duration, want bool) {
		t.Helper()
		clk.SetTime(clk.Now().Add(after))
		east.ResetCalls()
		if _, err := inventory.Recent(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := slices.ContainsFunc(east.Calls(), func(c pvesim.Call) bool { return c.Path == "/nodes/pve-1/qemu/5000/config" })
		if got != want {
			t.Errorf("all guests were read %s later: %t, want %t", after, got, want)
		}
	}
	read(11*time.Minute, false)
	read(13*time.Minute, false)
	read(2*time.Minute, true)
	read(11*time.Minute, false)
}

// TestInventoryOutlivesARegion checks that the snapshot keeps the hosts of a region that is
// down, marked as unusable, that the other region is still read, and that Unread reports
// this.
func TestInventoryOutlivesARegion(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakePassiveClock(time.Now())
	inventory, servers := twoRegions(t, clk)
	snapshot(t, inventory)
	if unread := inventory.Unread(); len(unread) > 0 {
		t.Errorf("unread regions %q although both responded", unread)
	}
	if err := servers["west"].Close(); err != nil {
		t.Fatal(err)
	}
	inventory.Stale("east", "west")
	after := snapshot(t, inventory)
	if unread := inventory.Unread(); !slices.Equal(unread, []topology.RegionName{"west"}) {
		t.Errorf("unread regions %q, want west", unread)
	}
	if len(after.Hosts) != 4 {
		t.Fatalf("%d hosts, want also the hosts that are down", len(after.Hosts))
	}
	for i := range after.Hosts {
		host := &after.Hosts[i]
		if down := strings.Contains(host.Problem, "cannot be read now"); down != (host.Region == "west") {
			t.Errorf("host %s has problem %q", host.ID(), host.Problem)
		}
	}
}

// TestInventoryOfARegionNeverRead checks that a region that does not respond when numaform
// starts is in the snapshot, without hosts.
func TestInventoryOfARegionNeverRead(t *testing.T) {
	t.Parallel()
	inventory, servers := twoRegions(t, testclock.NewFakePassiveClock(time.Now()))
	if err := servers["west"].Close(); err != nil {
		t.Fatal(err)
	}
	got := snapshot(t, inventory)
	i := slices.IndexFunc(got.Regions, func(r topology.Region) bool { return r.Name == "west" })
	if len(got.Hosts) != 2 || len(got.Regions) != 2 || i < 0 || got.Regions[i].Quorate || !got.Regions[i].HidesGuests {
		t.Errorf("%d hosts in regions %+v", len(got.Hosts), got.Regions)
	}
}

func TestInventoryFailsWithoutAnyRegion(t *testing.T) {
	t.Parallel()
	inventory, servers := twoRegions(t, testclock.NewFakePassiveClock(time.Now()))
	for _, server := range servers {
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := inventory.Snapshot(t.Context())
	if err == nil || !strings.Contains(err.Error(), "reading proxmox") {
		t.Errorf("got %v", err)
	}
	// Callers that waited meanwhile share the result, and do not wait for a region
	// themselves.
	if _, again := inventory.Snapshot(t.Context()); again != err { //nolint:errorlint // exactly the same error
		t.Errorf("a moment later, got %v", again)
	}
}

// TestInventoryOfACanceledCaller checks that the next callers do not get the error of a
// caller whose context was canceled while Proxmox was read.
func TestInventoryOfACanceledCaller(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakePassiveClock(time.Now())
	inventory, servers := twoRegions(t, clk)
	had := guests(snapshot(t, inventory), "west")
	impatient, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	servers["east"].AddFault(pvesim.Fault{Method: "GET", Path: "/cluster/resources$", Times: 1, Hit: func(ctx context.Context, _ pvesim.Call) {
		giveUp()
		<-ctx.Done()
	}})
	if err := servers["west"].PutGuest(pvesim.Guest{VMID: 300, Host: "pve-1", Config: map[string]string{"name": "new", "memory": "512"}}); err != nil {
		t.Fatal(err)
	}
	inventory.Stale("east", "west")
	if _, err := inventory.Snapshot(impatient); !errors.Is(err, context.Canceled) {
		t.Errorf("the canceled caller got error %v", err)
	}
	after := snapshot(t, inventory)
	for i := range after.Hosts {
		if problem := after.Hosts[i].Problem; problem != "" {
			t.Errorf("host %s: %s", after.Hosts[i].ID(), problem)
		}
	}
	if got := guests(after, "west"); got != had+1 {
		t.Errorf("%d guests after a canceled read, want %d: stale data is still stale", got, had+1)
	}
}
