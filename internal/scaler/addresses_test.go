package scaler_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// addressed returns a request for a VM with an address of the pool nodes.
func addressed(host topology.HostID) scaler.Request {
	r := request(host)
	r.Spec.Networks = []fleet.Network{{Bridge: "vmbr0", MAC: "BC:24:11", Addresses: []fleet.Address{{Pool: "nodes"}}}}
	return r
}

// withPool returns the snapshot with the address pool nodes.
func withPool(t *testing.T, s *topology.Snapshot, config ipam.Config) *topology.Snapshot {
	t.Helper()
	config.Name = "nodes"
	pool, err := ipam.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	s.Regions[0].AddressPools = []topology.AddressPool{pool}
	return s
}

// TestAddresses checks that a VM gets its address with its VMID, in its file and in its
// description, and that an address is not free before its guest is gone.
func TestAddresses(t *testing.T) {
	t.Parallel()
	small := ipam.Config{Subnet: "192.168.1.0/24", Ranges: []string{"192.168.1.10-192.168.1.12"}, Gateway: "192.168.1.1"}
	s := newScaler(t, nil)
	foreign := stranger(105)
	foreign.Addresses = []string{"192.168.1.11"}
	change := propose(t, s, withPool(t, snapshot(foreign), small), addressed(pve1), addressed(pve2))
	want := []string{"192.168.1.12/24", "192.168.1.10/24"} // VMIDs 2000 and 2001 begin at .12 and .10
	for i, vm := range change.Added {
		if got := vm.Networks[0].Addresses[0]; got.CIDR != want[i] || got.Gateway != "192.168.1.1" {
			t.Errorf("vm %s has %+v, want %s", vm.Name, got, want[i])
		}
		file := string(change.AfterFiles[generator.NodeFile(&change.Added[i])])
		if line := "Addresses: net0 " + want[i] + " from nodes."; strings.Count(file, line) != 2 || !strings.Contains(file, `"`+want[i]+`"`) {
			t.Errorf("the file of %s lacks %q in its comment, in its description or in its record:\n%s", vm.Name, line, file)
		}
	}
	begin(t, s, change, nil)

	var full *ipam.ExhaustedError
	_, err := s.Propose(t.Context(), withPool(t, snapshot(foreign), small), []scaler.Request{addressed(pve1)}, nil)
	if !errors.As(err, &full) || full.VMs != 2 || len(full.Others) != 1 || full.Others[0].String() != "guest 105 (accounting) 192.168.1.11" {
		t.Errorf("the pool is exhausted: %v", err)
	}

	// The file of the first VM is gone, but its guest still exists.
	removal, err := s.ProposeRemoval(t.Context(), withPool(t, snapshot(foreign), small), []string{"workers-2000"})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s, removal, nil)
	leftover := guestOf(change.Added[0])
	leftover.Addresses = []string{"192.168.1.12"}
	if _, err := s.Propose(t.Context(), withPool(t, snapshot(foreign, leftover), small), []scaler.Request{addressed(pve1)}, nil); !errors.As(err, &full) {
		t.Errorf("the address of a guest that still exists was given away: %v", err)
	}
	next := propose(t, s, withPool(t, snapshot(foreign), small), addressed(pve1))
	if got := next.Added[0].Networks[0].Addresses[0].CIDR; got != "192.168.1.12/24" {
		t.Errorf("got %s, want the released address", got)
	}
}

// addressWorld is a Proxmox cluster for TestAddressesOfManyVMs.
type addressWorld struct {
	pool   ipam.Config
	guests map[fleet.VMID]topology.Guest
	hosts  map[fleet.VMID]topology.HostID
}

func (w *addressWorld) snapshot(t *testing.T) *topology.Snapshot {
	s := withPool(t, snapshot(), w.pool)
	for id, guest := range w.guests {
		at := slices.IndexFunc(s.Hosts, func(h topology.Host) bool { return h.ID() == w.hosts[id] })
		s.Hosts[at].Guests = append(s.Hosts[at].Guests, guest)
	}
	return s
}

// apply makes the guests those of the fleet, up to a number of operations.
func (w *addressWorld) apply(f fleet.Fleet, most int) {
	desired := map[fleet.VMID]bool{}
	var missing []fleet.VM
	for _, vm := range f.VMs {
		desired[vm.VMID] = true
		if _, exists := w.guests[vm.VMID]; !exists {
			missing = append(missing, vm)
		}
	}
	var surplus []fleet.VMID
	for id, guest := range w.guests {
		if guest.Key != "" && !desired[id] {
			surplus = append(surplus, id)
		}
	}
	slices.Sort(surplus)
	// Creates come first, as in an apply of several hosts.
	for i := range missing {
		if most--; most < 0 {
			return
		}
		guest := guestOf(missing[i])
		for _, ip := range fleet.ParseAddresses(fleet.AddressesLine(missing[i].Networks)) {
			guest.Addresses = append(guest.Addresses, ip.String())
		}
		w.guests[missing[i].VMID], w.hosts[missing[i].VMID] = guest, missing[i].Host
	}
	for _, id := range surplus {
		if most--; most < 0 {
			return
		}
		delete(w.guests, id)
		delete(w.hosts, id)
	}
}

// TestAddressesOfManyVMs lets two writers of one fleet create and remove VMs up to 1,000, and
// kills the one at work at a random step of each change: before its files are written, before
// its apply, in the middle of it, or before its outcome is recorded. The other one then takes
// over. No two guests and no two files ever have the same address, and in the end all are
// free.
func TestAddressesOfManyVMs(t *testing.T) {
	t.Parallel()
	const most, rounds = 1000, 14
	random := rand.New(rand.NewPCG(1, 2))
	w := &addressWorld{
		pool:   ipam.Config{Subnet: "10.0.0.0/21", Exclude: []string{"10.0.1.0/24", "10.0.3.7"}, Gateway: "10.0.0.1", DNSServers: []string{"10.0.0.2"}},
		guests: map[fleet.VMID]topology.Guest{}, hosts: map[fleet.VMID]topology.HostID{},
	}
	foreign := stranger(105)
	foreign.Addresses = []string{"10.0.2.9"}
	w.guests[105], w.hosts[105] = foreign, pve2

	dir := filepath.Join(t.TempDir(), "fleet")
	shared := sealed(t, dir)
	writers := make([]*scaler.Scaler, 2)
	for i := range writers {
		writers[i] = newScaler(t, func(config *scaler.Config) {
			config.Dir = dir
			config.Store = shared
			config.Regions[0].VMIDs = fleet.VMIDRange{Lower: 2000, Upper: 5999}
		})
	}
	check := func(f fleet.Fleet) {
		t.Helper()
		seen := map[netip.Addr]string{}
		use := func(ip netip.Addr, user string) {
			if seen[ip] != "" {
				t.Fatalf("%s belongs to %s and to %s", ip, seen[ip], user)
			}
			seen[ip] = user
		}
		for id, guest := range w.guests {
			for _, text := range guest.Addresses {
				use(netip.MustParseAddr(text), fmt.Sprintf("guest %d", id))
			}
		}
		for i := range f.VMs {
			vm := &f.VMs[i]
			if _, exists := w.guests[vm.VMID]; !exists {
				use(vm.Addresses()[0], vm.Name)
			}
		}
	}

	kills := map[string]int{}
	peak := 0
	for range rounds {
		writer := writers[random.IntN(2)]
		f, _, err := writer.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		snapshot := w.snapshot(t)
		var change *scaler.Change
		if len(f.VMs) < most && (len(f.VMs) < most/2 || random.IntN(2) == 0) {
			var requests []scaler.Request
			for range min(most-len(f.VMs), 300) {
				requests = append(requests, addressed([]topology.HostID{pve1, pve2}[random.IntN(2)]))
			}
			change, err = writer.Propose(t.Context(), snapshot, requests, nil)
		} else {
			var names []string
			for _, i := range random.Perm(len(f.VMs))[:min(len(f.VMs), 200)] {
				names = append(names, f.VMs[i].Name)
			}
			change, err = writer.ProposeRemoval(t.Context(), snapshot, names)
		}
		if err != nil {
			t.Fatal(err)
		}

		step := []string{"before its files", "before its apply", "in its apply", "before its outcome", "not at all"}[random.IntN(5)]
		kills[step]++
		if step == "before its files" {
			continue
		}
		begin(t, writer, change, nil)
		switch step {
		case "in its apply":
			w.apply(change.After, random.IntN(len(change.Added)+len(change.Removed)))
		case "before its outcome", "not at all":
			w.apply(change.After, 1<<30)
		}
		peak = max(peak, len(change.After.VMs))
		check(change.After)
	}
	if peak < most || len(kills) != 5 {
		t.Errorf("at most %d VMs, killed %v: choose another seed", peak, kills)
	}

	f, _, err := writers[0].Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, vm := range f.VMs {
		names = append(names, vm.Name)
	}
	change, err := writers[1].ProposeRemoval(t.Context(), w.snapshot(t), names)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, writers[1], change, nil)
	w.apply(change.After, 1<<30)
	snapshot := w.snapshot(t)
	pool := &snapshot.Regions[0].AddressPools[0]
	if free := ipam.New(snapshot, change.After.VMs, nil).Free(pool); free != ipam.Size(pool)-1 { // one is the stranger's
		t.Errorf("in the end, %d of %d addresses are free", free, ipam.Size(pool))
	}
	t.Logf("at most %d VMs; killed %v; the pool has %d addresses", peak, kills, ipam.Size(pool))
}
