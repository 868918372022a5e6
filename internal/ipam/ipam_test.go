package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/topology"
)

// texts returns the ranges of a pool in the form FIRST-LAST.
func texts(pool topology.AddressPool) []string {
	var list []string
	for _, r := range pool.Ranges {
		list = append(list, fmt.Sprintf("%s-%s", r.First, r.Last))
	}
	return list
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		config ipam.Config
		want   []string
		err    string
	}{
		{name: "whole subnet", config: ipam.Config{Subnet: "192.168.1.0/29"}, want: []string{"192.168.1.1-192.168.1.6"}},
		{
			name:   "gateway and DNS servers",
			config: ipam.Config{Subnet: "192.168.1.0/29", Gateway: "192.168.1.1", DNSServers: []string{"192.168.1.3", "9.9.9.9"}},
			want:   []string{"192.168.1.2-192.168.1.2", "192.168.1.4-192.168.1.6"},
		},
		{
			name: "ranges and exclusions",
			config: ipam.Config{
				Subnet: "10.0.0.0/16", Gateway: "10.0.0.1",
				Ranges:  []string{"10.0.2.0/24", "10.0.1.250 - 10.0.1.255", "10.0.9.9", "10.0.1.255-10.0.2.3"},
				Exclude: []string{"10.0.2.0/25", "10.0.1.252", "10.0.2.255"},
			},
			want: []string{"10.0.1.250-10.0.1.251", "10.0.1.253-10.0.1.255", "10.0.2.128-10.0.2.254", "10.0.9.9-10.0.9.9"},
		},
		{name: "network and broadcast address in a range", config: ipam.Config{Subnet: "10.1.0.0/30", Ranges: []string{"10.1.0.0-10.1.0.3"}}, want: []string{"10.1.0.1-10.1.0.2"}},
		{name: "two addresses", config: ipam.Config{Subnet: "10.1.0.0/31"}, want: []string{"10.1.0.0-10.1.0.1"}},
		{name: "one address", config: ipam.Config{Subnet: "10.1.0.7/32"}, want: []string{"10.1.0.7-10.1.0.7"}},
		{name: "end of the address space", config: ipam.Config{Subnet: "255.255.255.254/31"}, want: []string{"255.255.255.254-255.255.255.255"}},
		{name: "IPv6", config: ipam.Config{Subnet: "fd00:10::/126", Gateway: "fd00:10::1"}, want: []string{"fd00:10::2-fd00:10::3"}},
		{name: "the first million of a network", config: ipam.Config{Subnet: "fd00:10::/64"}, want: []string{"fd00:10::1-fd00:10::10:0"}},
		{name: "an IPv4 DNS server of an IPv6 network", config: ipam.Config{Subnet: "fd00::/127", DNSServers: []string{"9.9.9.9"}}, want: []string{"fd00::-fd00::1"}},

		{name: "no subnet", err: `subnet "": must be a network with its prefix length`},
		{name: "host in subnet", config: ipam.Config{Subnet: "192.168.1.7/24"}, err: `subnet "192.168.1.7/24": is the address of a host: write the network 192.168.1.0/24`},
		{name: "range outside", config: ipam.Config{Subnet: "192.168.1.0/24", Ranges: []string{"192.168.2.1-192.168.2.9"}}, err: `ranges[0] "192.168.2.1-192.168.2.9": is not in the subnet 192.168.1.0/24`},
		{name: "range across", config: ipam.Config{Subnet: "192.168.1.0/24", Ranges: []string{"192.168.1.250-192.168.2.9"}}, err: `is not in the subnet`},
		{name: "range of the other family", config: ipam.Config{Subnet: "192.168.1.0/24", Ranges: []string{"fd00::1-fd00::9"}}, err: `is not in the subnet`},
		{name: "range reversed", config: ipam.Config{Subnet: "192.168.1.0/24", Ranges: []string{"192.168.1.9-192.168.1.1"}}, err: `ranges[0] "192.168.1.9-192.168.1.1": ends before it begins`},
		{name: "range of words", config: ipam.Config{Subnet: "192.168.1.0/24", Exclude: []string{"all"}}, err: `exclude[0] "all": must be an address, a range`},
		{name: "range with a host", config: ipam.Config{Subnet: "192.168.1.0/24", Ranges: []string{"192.168.1.7/28"}}, err: `write the network 192.168.1.0/28, or the address without /28`},
		{name: "exclusion outside", config: ipam.Config{Subnet: "192.168.1.0/24", Exclude: []string{"10.0.0.1"}}, err: `exclude[0] "10.0.0.1": is not in the subnet`},
		{name: "gateway outside", config: ipam.Config{Subnet: "192.168.1.0/24", Gateway: "192.168.2.1"}, err: `gateway "192.168.2.1": is not the address of a host in the subnet 192.168.1.0/24`},
		{name: "gateway is broadcast", config: ipam.Config{Subnet: "192.168.1.0/24", Gateway: "192.168.1.255"}, err: `gateway "192.168.1.255": is not the address of a host`},
		{name: "gateway of words", config: ipam.Config{Subnet: "192.168.1.0/24", Gateway: "router"}, err: `gateway "router": must be an IP address`},
		{name: "DNS server of words", config: ipam.Config{Subnet: "192.168.1.0/24", DNSServers: []string{"dns"}}, err: `dns_servers[0] "dns": must be an IP address`},
		{name: "search domain", config: ipam.Config{Subnet: "192.168.1.0/24", SearchDomains: []string{"a b"}}, err: `search_domains[0] "a b": must be a domain`},
		{name: "everything excluded", config: ipam.Config{Subnet: "192.168.1.0/24", Exclude: []string{"192.168.1.0/24"}}, err: `contains no address`},
		{name: "mapped", config: ipam.Config{Subnet: "::ffff:192.168.1.0/120"}, err: `must be a network`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.config.Name = "nodes"
			pool, err := ipam.Parse(test.config)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, texts(pool)); diff != "" {
				t.Errorf("ranges (-want +got):\n%s", diff)
			}
		})
	}
	for _, name := range []string{"", "Nodes", "-a", strings.Repeat("a", 64)} {
		if _, err := ipam.Parse(ipam.Config{Name: name, Subnet: "192.168.1.0/24"}); err == nil || !strings.Contains(err.Error(), "name ") {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

func parse(t interface{ Fatal(...any) }, config ipam.Config) topology.AddressPool {
	pool, err := ipam.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	a := parse(t, ipam.Config{Name: "a", Subnet: "10.0.0.0/24", Ranges: []string{"10.0.0.10-10.0.0.20"}})
	for text, want := range map[string]string{
		"10.0.0.21-10.0.0.30": "invalid IP", "10.0.0.20-10.0.0.30": "10.0.0.20", "10.0.0.1-10.0.0.9": "invalid IP", "10.0.0.0/24": "10.0.0.10",
	} {
		b := parse(t, ipam.Config{Name: "b", Subnet: "10.0.0.0/24", Ranges: []string{text}})
		if ip, found := ipam.Overlap(&a, &b); ip.String() != want || found != (want != "invalid IP") {
			t.Errorf("%s: %s, %t", text, ip, found)
		}
	}
}

// lab returns a snapshot whose only region has the pools.
func lab(pools ...topology.AddressPool) *topology.Snapshot {
	return &topology.Snapshot{Regions: []topology.Region{{Name: "lab", AddressPools: pools}}}
}

// vm returns a VM of region lab with one device for each list of pools.
func vm(id fleet.VMID, devices ...[]string) fleet.VM {
	v := fleet.VM{VMID: id, Name: fleet.NodeName("w", id), Placement: fleet.Placement{Host: topology.HostID{Region: "lab", Host: "pve1"}}}
	for _, pools := range devices {
		n := fleet.Network{Bridge: "vmbr0"}
		for _, pool := range pools {
			n.Addresses = append(n.Addresses, fleet.Address{Pool: pool})
		}
		v.Networks = append(v.Networks, n)
	}
	return v
}

func TestGive(t *testing.T) {
	t.Parallel()
	four := parse(t, ipam.Config{
		Name: "four", Subnet: "192.168.1.0/24", Ranges: []string{"192.168.1.100-192.168.1.109"},
		Gateway: "192.168.1.1", DNSServers: []string{"192.168.1.2"}, SearchDomains: []string{"lab.example"},
	})
	six := parse(t, ipam.Config{Name: "six", Subnet: "fd00::/64", Gateway: "fd00::1"})
	storage := parse(t, ipam.Config{Name: "storage", Subnet: "10.9.0.0/24"})
	snapshot := lab(four, six, storage)
	snapshot.Hosts = []topology.Host{{
		Region: "lab", Name: "pve1", Addresses: []string{"192.168.1.100"},
		Guests: []topology.Guest{{VMID: 105, Name: "db", Addresses: []string{"192.168.1.101"}}},
	}}
	existing := vm(2002, []string{"four"})
	existing.Networks[0].Addresses[0].CIDR = "192.168.1.102/24"
	book := ipam.New(snapshot, []fleet.VM{existing}, map[string]string{"192.168.1.103": "cp-1", "cp-1": "cp-1"})
	if free := book.Free(&four); free != 6 {
		t.Errorf("%d addresses are free, want 6", free)
	}

	// The position of VMID 2000 in the pool is 0.
	got := vm(2000, []string{"four", "six"}, []string{"storage"}, []string{"four"}, nil)
	if err := book.Give(&got); err != nil {
		t.Fatal(err)
	}
	first := fleet.Address{Pool: "four", CIDR: "192.168.1.104/24", Gateway: "192.168.1.1", DNSServers: []string{"192.168.1.2"}, SearchDomains: []string{"lab.example"}}
	second := first
	second.CIDR = "192.168.1.105/24"
	want := []fleet.Network{
		{Bridge: "vmbr0", Addresses: []fleet.Address{first, {Pool: "six", CIDR: "fd00::7d2/64", Gateway: "fd00::1"}}},
		{Bridge: "vmbr0", Addresses: []fleet.Address{{Pool: "storage", CIDR: "10.9.0.223/24"}}}, // 2000 modulo 254, from .1
		{Bridge: "vmbr0", Addresses: []fleet.Address{second}},
		{Bridge: "vmbr0"},
	}
	if diff := cmp.Diff(want, got.Networks, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}

	// The next VMIDs get the next addresses, and begin again at the end.
	for i, want := range []string{"192.168.1.107/24", "192.168.1.106/24", "192.168.1.109/24", "192.168.1.108/24"} {
		next := vm([]fleet.VMID{2007, 2001, 2009, 2019}[i], []string{"four"})
		if err := book.Give(&next); err != nil || next.Networks[0].Addresses[0].CIDR != want {
			t.Errorf("%d: %v, %v, want %s", next.VMID, next.Networks, err, want)
		}
	}

	last := vm(2020, []string{"storage"}, []string{"four"})
	err := book.Give(&last)
	const exhausted = `address pool "four" of region lab has no free address: of 10, 7 belong to VMs of this fleet and 3 to others ` +
		`(host pve1 192.168.1.100, guest 105 (db) 192.168.1.101, Node cp-1 192.168.1.103): ` +
		`add ranges to address_pools of that cluster in numaform.yaml, or remove nodes`
	var full *ipam.ExhaustedError
	if !errors.As(err, &full) || err.Error() != exhausted {
		t.Errorf("got  %v\nwant %s", err, exhausted)
	}
	if last.Networks[0].Addresses[0].CIDR != "" {
		t.Error("a VM that got no address was changed")
	}
	unknown := vm(2021, []string{"sto"})
	var missing *ipam.NoPoolError
	if err := book.Give(&unknown); !errors.As(err, &missing) || !strings.Contains(err.Error(), `region lab has no address pool "sto": add it to address_pools`) {
		t.Errorf("got %v", err)
	}
}

// TestExhaustedByOthers checks that the message about an exhausted pool names the guest that
// claims most of its addresses, whoever comes first in the pool, and stays short.
func TestExhaustedByOthers(t *testing.T) {
	t.Parallel()
	pool := parse(t, ipam.Config{Name: "nodes", Subnet: "10.0.0.0/24"})
	snapshot := lab(pool)
	guest := topology.Guest{VMID: 105, Name: "greedy"}
	for i := 10; i < 255; i++ {
		guest.Addresses = append(guest.Addresses, fmt.Sprintf("10.0.0.%d", i))
	}
	snapshot.Hosts = []topology.Host{{Region: "lab", Name: "pve9", Guests: []topology.Guest{guest}}}
	for i := 1; i < 10; i++ {
		small := topology.Guest{VMID: 200 + i, Name: "db", Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}}
		snapshot.Hosts[0].Guests = append(snapshot.Hosts[0].Guests, small)
	}
	next := vm(2000, []string{"nodes"})
	err := ipam.New(snapshot, nil, nil).Give(&next)
	const want = "of 254, 0 belong to VMs of this fleet and 254 to others (guest 105 (greedy) 10.0.0.10 10.0.0.11 10.0.0.12 and 242 more, guest 201 (db) 10.0.0.1, " +
		"guest 202 (db) 10.0.0.2, guest 203 (db) 10.0.0.3, guest 204 (db) 10.0.0.4, 5 more): "
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestCheck checks that a VM may be created with the addresses that Give assigns, and not if
// they were edited, or belong to a host or a Node.
func TestCheck(t *testing.T) {
	t.Parallel()
	pool := parse(t, ipam.Config{
		Name: "nodes", Subnet: "192.168.1.0/24", Ranges: []string{"192.168.1.100-192.168.1.199"}, Exclude: []string{"192.168.1.150"},
		Gateway: "192.168.1.1", DNSServers: []string{"192.168.1.2"}, SearchDomains: []string{"lab.example"},
	})
	snapshot := lab(pool)
	snapshot.Hosts = []topology.Host{{Region: "lab", Name: "pve9", Addresses: []string{"192.168.1.120"}}}
	given := vm(2000, []string{"nodes"})
	if err := ipam.New(snapshot, nil, nil).Give(&given); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		edit func(a *fleet.Address)
		want string
	}{
		{"as assigned", func(*fleet.Address) {}, ""},
		{"another address of the pool", func(a *fleet.Address) { a.CIDR = "192.168.1.101/24" }, ""},
		{"the gateway", func(a *fleet.Address) { a.CIDR = "192.168.1.1/24" }, `net0 has the address 192.168.1.1/24, which address pool "nodes" does not assign`},
		{"an excluded address", func(a *fleet.Address) { a.CIDR = "192.168.1.150/24" }, "does not assign"},
		{"an address outside the subnet", func(a *fleet.Address) { a.CIDR = "10.0.0.7/24" }, "does not assign"},
		{"no address", func(a *fleet.Address) { a.CIDR = "" }, "does not assign"},
		{"another prefix length", func(a *fleet.Address) { a.CIDR = "192.168.1.101/8" }, `net0 has the address 192.168.1.101/8 with another prefix length, gateway, DNS server or search domain than address pool "nodes"`},
		{"another gateway", func(a *fleet.Address) { a.Gateway = "192.168.1.99" }, "another prefix length, gateway"},
		{"another DNS server", func(a *fleet.Address) { a.DNSServers = []string{"9.9.9.9"} }, "DNS server"},
		{"another domain", func(a *fleet.Address) { a.SearchDomains = nil }, "search domain"},
		{"the address of a host", func(a *fleet.Address) { a.CIDR = "192.168.1.120/24" }, "net0 has the address 192.168.1.120 of host pve9"},
		{"the address of a Node", func(a *fleet.Address) { a.CIDR = "192.168.1.130/24" }, "net0 has the address 192.168.1.130 of Node cp-1"},
		{"the address of its own Node", func(a *fleet.Address) { a.CIDR = "192.168.1.131/24" }, ""},
		{"another pool", func(a *fleet.Address) { a.Pool = "storage" }, `region lab has no address pool "storage"`},
	} {
		edited := given
		edited.Networks = slices.Clone(given.Networks)
		edited.Networks[0].Addresses = slices.Clone(given.Networks[0].Addresses)
		test.edit(&edited.Networks[0].Addresses[0])
		err := ipam.Check(snapshot, &edited, map[string]string{"192.168.1.130": "cp-1", "192.168.1.131": edited.Name})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// TestKeepsFormer checks that a VM that is created again keeps its address if that is free
// and still in its pool.
func TestKeepsFormer(t *testing.T) {
	t.Parallel()
	pool := parse(t, ipam.Config{Name: "nodes", Subnet: "10.0.0.0/24", Ranges: []string{"10.0.0.10-10.0.0.19"}})
	for former, want := range map[string]string{"10.0.0.15/24": "10.0.0.15/24", "10.0.0.12/24": "10.0.0.10/24", "10.0.0.99/24": "10.0.0.10/24", "": "10.0.0.10/24"} {
		other := vm(2001, []string{"nodes"})
		other.Networks[0].Addresses[0].CIDR = "10.0.0.12/24"
		again := vm(2010, []string{"nodes"})
		again.Networks[0].Addresses[0].CIDR = former
		if err := ipam.New(lab(pool), []fleet.VM{other}, nil).Give(&again); err != nil || again.Networks[0].Addresses[0].CIDR != want {
			t.Errorf("former %q: %+v, %v, want %s", former, again.Networks, err, want)
		}
	}
}

// TestGiveProperties gives and releases addresses at random: none is given twice, none that
// is excluded or in use, and a pool is exhausted only if all of its addresses are in use.
func TestGiveProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(26, 30).Draw(t, "bits")
		config := ipam.Config{Name: "nodes", Subnet: fmt.Sprintf("10.0.0.0/%d", bits), Gateway: "10.0.0.1"}
		for range rapid.IntRange(0, 3).Draw(t, "exclusions") {
			config.Exclude = append(config.Exclude, fmt.Sprintf("10.0.0.%d", rapid.IntRange(0, 1<<(32-bits)-1).Draw(t, "excluded")))
		}
		pool, err := ipam.Parse(config)
		if err != nil {
			t.Skip("everything is excluded")
		}
		var vms []fleet.VM
		for id := range fleet.VMID(rapid.IntRange(1, 100).Draw(t, "vms")) {
			if len(vms) > 0 && rapid.Bool().Draw(t, "release") {
				at := rapid.IntRange(0, len(vms)-1).Draw(t, "at")
				vms = append(vms[:at:at], vms[at+1:]...)
			}
			v := vm(2000+id, []string{"nodes"})
			book := ipam.New(lab(pool), vms, nil)
			err := book.Give(&v)
			if (err != nil) != (len(vms) == ipam.Size(&pool)) || (book.Free(&pool) == 0) != (err != nil || len(vms)+1 == ipam.Size(&pool)) {
				t.Fatalf("%d of %d addresses are in use: %v", len(vms), ipam.Size(&pool), err)
			}
			if err == nil {
				vms = append(vms, v)
			}
			seen := map[netip.Addr]bool{}
			for i := range vms {
				ip := vms[i].Addresses()[0]
				bad := seen[ip] || !pool.Subnet.Contains(ip) || ip == pool.Gateway || ip == pool.Subnet.Addr() || ip == lastOf(pool.Subnet)
				for _, excluded := range config.Exclude {
					bad = bad || ip.String() == excluded
				}
				if bad {
					t.Fatalf("VM %s got %s", vms[i].Name, ip)
				}
				seen[ip] = true
			}
		}
	})
}

// lastOf returns the broadcast address, the slow way.
func lastOf(subnet netip.Prefix) netip.Addr {
	ip := subnet.Addr()
	for subnet.Contains(ip.Next()) {
		ip = ip.Next()
	}
	return ip
}
