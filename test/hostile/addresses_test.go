package hostile_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// addressWorld returns a fleet with two VMs that have addresses of the pools nodes and
// nodes6. The host has the address 10.9.0.60, and a Node of the cluster 10.9.0.61.
func addressWorld(t *testing.T) *stateWorld {
	t.Helper()
	w := newSizedWorld(t, 1)
	parse := func(config ipam.Config) topology.AddressPool {
		pool, err := ipam.Parse(config)
		if err != nil {
			t.Fatal(err)
		}
		return pool
	}
	nodes := ipam.Config{
		Name: "nodes", Subnet: "10.9.0.0/24", Ranges: []string{"10.9.0.0-10.9.0.127", "10.9.0.255"}, Exclude: []string{"10.9.0.62"},
		Gateway: "10.9.0.1", DNSServers: []string{"10.9.0.2"}, SearchDomains: []string{"lab.example"},
	}
	w.pools = map[topology.RegionName][]topology.AddressPool{
		testenv.Region: {parse(nodes), parse(ipam.Config{Name: "nodes6", Subnet: "fd00:9::/64", Ranges: []string{"fd00:9::100-fd00:9::1ff"}, Gateway: "fd00:9::1"})},
		"other":        {parse(ipam.Config{Name: "others", Subnet: "10.8.0.0/24"})},
	}
	w.networks = []fleet.Network{{Bridge: "vmbr0", Firewall: true, MAC: "BC:24:11", Addresses: []fleet.Address{{Pool: "nodes"}, {Pool: "nodes6"}}}}
	w.nodes, w.hostAddress = map[string]string{"10.9.0.61": "control-plane"}, "10.9.0.60"
	change, err := w.add(w.fleet.VMs, 2)
	if err != nil {
		t.Fatal(err)
	}
	w.fleet = change.After
	w.keep()
	return w
}

// TestAddressFiles attacks the static addresses in the files of a fleet: an attacker adds the
// file of a VM with an address that its pool does not assign, or changes the address of a VM
// that exists, so that its address would become free. Nothing is written to Proxmox, although
// an operator approves everything. `make test` runs one attack of each kind.
func TestAddressFiles(t *testing.T) {
	t.Parallel()
	w := addressWorld(t)
	victim, other := w.fleet.VMs[1], w.fleet.VMs[2]
	v4, v6 := victim.Networks[0].Addresses[0].CIDR, victim.Networks[0].Addresses[1].CIDR
	taken4, taken6 := other.Networks[0].Addresses[0].CIDR, other.Networks[0].Addresses[1].CIDR
	const new4, new6 = "10.9.0.77/24", "fd00:9::177/64"
	verdicts := ""
	approve := func(plans []scaler.RootPlan) (string, error) {
		for i := range plans {
			verdicts += plans[i].Verdict.String()
		}
		return approveAll(plans)
	}
	long := func(cidr string) string { return strings.Replace(cidr, "::", ":0:0:0:0:0:", 1) }
	for _, attack := range []struct {
		name string
		// address replaces the IPv4 address in the file, and address6 the IPv6 address.
		address, address6 string
		// replace are pairs of other texts in the files.
		replace []string
		// edit is set if the attack also edits the file of a VM that exists, and free if a new
		// VM may have the address.
		edit, free bool
		// all runs the attack also in make test.
		all bool
		// unreadable is set if no file of the fleet is read because of the address.
		unreadable bool
	}{
		{name: "free address", all: true, address: "10.9.0.78/24", edit: true, free: true},
		{name: "address of another VM", all: true, address: taken4, edit: true, unreadable: true},
		{name: "IPv6 address of another VM", address6: taken6, edit: true, unreadable: true},
		{name: "long form of the IPv6 address of another VM", address6: long(taken6), edit: true, unreadable: true},
		{name: "upper case of the IPv6 address of another VM", address6: strings.ToUpper(taken6), edit: true, unreadable: true},
		{name: "address of another VM in IPv6", all: true, address6: "::ffff:" + strings.Replace(taken4, "/24", "/120", 1)},
		{name: "address of another VM twice", address: taken4, address6: taken4},
		{name: "network", address: "10.9.0.0/24"},
		{name: "broadcast address", address: "10.9.0.255/24"},
		{name: "routers of an IPv6 network", address6: "fd00:9::/64"},
		{name: "gateway", all: true, address: "10.9.0.1/24", edit: true},
		{name: "DNS server", address: "10.9.0.2/24"},
		{name: "excluded address", address: "10.9.0.62/24"},
		{name: "address of the host", address: "10.9.0.60/24", edit: true},
		{name: "address of a Node", address: "10.9.0.61/24"},
		{name: "outside the ranges", address: "10.9.0.200/24"},
		{name: "outside the subnet", address: "10.10.0.77/24"},
		{name: "address of a pool of another region", address: "10.8.0.7/24"},
		{name: "pool of another region", address: "10.8.0.7/24", replace: []string{`"nodes"`, `"others"`, "from nodes,", "from others,"}},
		{name: "no such pool", replace: []string{`"nodes"`, `"x"`, "from nodes,", "from x,"}},
		{name: "loopback", address: "127.0.0.1/24"},
		{name: "other prefix length", address: "10.9.0.77/16"},
		{name: "without a prefix length", address: "10.9.0.77"},
		{name: "another gateway", all: true, replace: []string{`"10.9.0.1"`, `"10.9.0.66"`}},
		{name: "another DNS server", replace: []string{`"10.9.0.2"`, `"192.0.2.66"`}},
		{name: "another search domain", replace: []string{"lab.example", "evil.example"}},
	} {
		if !attack.all && !enginetest.EveryCase() {
			continue
		}
		run := func(name string, do func() error) {
			t.Run(attack.name+"/"+name, func(t *testing.T) {
				w.t = t
				w.restore()
				verdicts = ""
				err := do()
				t.Logf("refused: %v; %s", err, verdicts)
				if err == nil {
					t.Error("the address was not refused")
				}
				for _, call := range w.sim.Calls() {
					if call.Method != "GET" {
						t.Errorf("%s %s %v", call.Method, call.Path, call.Params)
					}
				}
				w.sameGuests()
			})
		}
		texts := func(old4, old6 string) []string {
			replace := slices.Clone(attack.replace)
			if attack.address != "" {
				replace = append(replace, old4, attack.address)
			}
			if attack.address6 != "" {
				replace = append(replace, old6, attack.address6)
			}
			return replace
		}
		created := func() error {
			err := w.push(func(f *fleet.Fleet) {
				vm := victim
				vm.VMID, vm.Key, vm.Name = 2050, otherKey, fleet.NodeName(victim.Pool, 2050)
				vm.Networks = slices.Clone(victim.Networks)
				vm.Networks[0].Addresses = slices.Clone(victim.Networks[0].Addresses)
				vm.Networks[0].Addresses[0].CIDR, vm.Networks[0].Addresses[1].CIDR = new4, new6
				fleet.GiveMACs(&vm, f.VMs)
				f.VMs = append(f.VMs, vm)
			}, texts(new4, new6)...)
			if err != nil {
				t.Fatal(err)
			}
			return w.settle(approve)
		}
		if !attack.free {
			run("new VM", created)
		}
		if !attack.edit {
			continue
		}
		edited := func(do func() error) func() error {
			return func() error {
				if err := w.push(func(*fleet.Fleet) {}, texts(v4, v6)...); err != nil {
					t.Fatal(err)
				}
				return do()
			}
		}
		run("edit", edited(func() error { return w.settle(approve) }))
		run("repair", edited(func() error {
			drift, err := w.scaler.Drift(w.t.Context(), w.snapshot())
			if err != nil {
				return err
			}
			change, held, err := w.scaler.ProposeRepair(w.t.Context(), w.snapshot(), drift)
			if err != nil || held != nil {
				return errors.Join(err, held)
			}
			if len(change.Repaired) == 0 {
				return errors.New("nothing can be repaired")
			}
			_, err = w.scaler.Apply(w.t.Context(), change, approve)
			return err
		}))
		if attack.unreadable {
			continue // the writer waits
		}
		run("retag", edited(func() error { return w.retagging().do([]string{victim.Name}) }))
	}
}

// settle applies the files.
func (w *stateWorld) settle(approve func([]scaler.RootPlan) (string, error)) error {
	change, err := w.scaler.Propose(w.t.Context(), w.snapshot(), nil, nil)
	if err == nil {
		_, err = w.scaler.Apply(w.t.Context(), change, approve)
	}
	return err
}
