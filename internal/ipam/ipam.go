// Package ipam assigns static addresses to VMs: it parses the address pools of
// numaform.yaml, and finds the free addresses of a pool. It stores nothing: the addresses in
// use are those of the fleet's VMs and of the guests, hosts and Nodes that are known. A VM's
// address is free again when the VM is gone. Start at Parse and New.
package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Book records which addresses are in use.
type Book struct {
	snapshot *topology.Snapshot
	// used maps each address to its user; vms are the users that are VMs of the fleet.
	used map[netip.Addr]string
	vms  map[netip.Addr]bool
}

// New returns the book of a snapshot with the fleet's VMs, including VMs that are being
// removed. nodes maps the addresses of the cluster's Nodes to their names.
func New(snapshot *topology.Snapshot, vms []fleet.VM, nodes map[string]string) *Book {
	b := &Book{snapshot: snapshot, used: map[netip.Addr]string{}, vms: map[netip.Addr]bool{}}
	use := func(text, user string) {
		if ip, err := netip.ParseAddr(text); err == nil && b.used[ip] == "" {
			b.used[ip] = user
		}
	}
	for i := range vms {
		b.add(&vms[i])
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		for _, text := range host.Addresses {
			use(text, "host "+string(host.Name))
		}
		for _, guest := range host.Guests {
			for _, text := range guest.Addresses {
				use(text, fmt.Sprintf("guest %d (%s)", guest.VMID, guest.Name))
			}
		}
	}
	for _, text := range slices.Sorted(maps.Keys(nodes)) {
		use(text, "Node "+nodes[text])
	}
	return b
}

func (b *Book) add(vm *fleet.VM) {
	for _, ip := range vm.Addresses() {
		b.used[ip] = "VM " + vm.Name
		b.vms[ip] = true
	}
}

// Free returns the number of free addresses of a pool.
func (b *Book) Free(pool *topology.AddressPool) int {
	free := Size(pool)
	for ip := range b.used {
		if contains(pool, ip) {
			free--
		}
	}
	return free
}

func contains(pool *topology.AddressPool, ip netip.Addr) bool {
	return slices.ContainsFunc(pool.Ranges, func(r topology.AddressRange) bool { return r.Contains(ip) })
}

// NoPoolError reports that a region has no address pool with a name.
type NoPoolError struct {
	Region topology.RegionName
	Pool   string
}

func (e *NoPoolError) Error() string {
	return fmt.Sprintf("region %s has no address pool %q: add it to address_pools of that cluster in numaform.yaml, or correct spec.networks of the ProxmoxNodeClass", e.Region, e.Pool)
}

// ExhaustedError reports that a pool has no free address left.
type ExhaustedError struct {
	Region topology.RegionName
	Pool   string
	// Size is the number of its addresses. VMs is how many of them the fleet's VMs use, and
	// Others lists the other users, the one with the most addresses first.
	Size, VMs int
	Others    []User
	// Wanted is the number of addresses that a VM needs, if that is more than one.
	Wanted int
}

// The maximum numbers of users in a message, and of addresses of each.
const (
	mostOthers = 5
	mostOfOne  = 3
)

// User is a guest, host or Node outside the fleet that uses addresses of a pool.
type User struct {
	Name      string
	Addresses []netip.Addr
}

// String returns the user with some of its addresses. Anyone who may describe a guest can
// claim addresses, so a user can have very many.
func (u User) String() string {
	text := u.Name
	for _, ip := range u.Addresses[:min(len(u.Addresses), mostOfOne)] {
		text += " " + ip.String()
	}
	if more := len(u.Addresses) - mostOfOne; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Foreign returns the number of addresses that Others use.
func (e *ExhaustedError) Foreign() int {
	total := 0
	for _, user := range e.Others {
		total += len(user.Addresses)
	}
	return total
}

func (e *ExhaustedError) Error() string {
	used := fmt.Sprintf("%d belong to VMs of this fleet", e.VMs)
	if len(e.Others) > 0 {
		var names []string
		for _, user := range e.Others[:min(len(e.Others), mostOthers)] {
			names = append(names, user.String())
		}
		if more := len(e.Others) - mostOthers; more > 0 {
			names = append(names, fmt.Sprintf("%d more", more))
		}
		used += fmt.Sprintf(" and %d to others (%s)", e.Foreign(), strings.Join(names, ", "))
	}
	free := "no free address"
	if e.Wanted > 1 {
		free = fmt.Sprintf("fewer than %d free addresses", e.Wanted)
	}
	return fmt.Sprintf("address pool %q of region %s has %s: of %d, %s: "+
		"add ranges to address_pools of that cluster in numaform.yaml, or remove nodes", e.Pool, e.Region, free, e.Size, used)
}

// Exhausted returns the error that describes a pool without a free address.
func (b *Book) Exhausted(region topology.RegionName, pool *topology.AddressPool) *ExhaustedError {
	e := &ExhaustedError{Region: region, Pool: pool.Name, Size: Size(pool)}
	for _, ip := range slices.SortedFunc(maps.Keys(b.used), netip.Addr.Compare) {
		switch {
		case !contains(pool, ip):
		case b.vms[ip]:
			e.VMs++
		default:
			at := slices.IndexFunc(e.Others, func(u User) bool { return u.Name == b.used[ip] })
			if at < 0 {
				at = len(e.Others)
				e.Others = append(e.Others, User{Name: b.used[ip]})
			}
			e.Others[at].Addresses = append(e.Others[at].Addresses, ip)
		}
	}
	slices.SortStableFunc(e.Others, func(a, b User) int { return cmp.Compare(len(b.Addresses), len(a.Addresses)) })
	return e
}

// Give assigns free addresses to the VM's network devices from the pools in its Spec. A VM
// that is created again keeps its former address if that is free. Otherwise the search
// begins at the position of the VMID in the pool: VMIDs rotate through their range, so an
// address is reused as late as possible, and the same VM gets the same address. Give returns
// a *NoPoolError or an *ExhaustedError, and then leaves the VM unchanged.
func (b *Book) Give(vm *fleet.VM) error {
	networks := slices.Clone(vm.Networks)
	given := *vm
	given.Networks = networks
	for i := range networks {
		networks[i].Addresses = slices.Clone(networks[i].Addresses)
		for j := range networks[i].Addresses {
			address := &networks[i].Addresses[j]
			pool := b.snapshot.AddressPool(vm.Host.Region, address.Pool)
			if pool == nil {
				return &NoPoolError{Region: vm.Host.Region, Pool: address.Pool}
			}
			ip := address.IP()
			*address = fleet.Address{} // so that it is not in use while it is looked for
			if b.used[ip] != "" || !contains(pool, ip) || slices.Contains(given.Addresses(), ip) {
				if ip = b.find(pool, int(vm.VMID), given.Addresses()); !ip.IsValid() {
					return b.Exhausted(vm.Host.Region, pool)
				}
			}
			*address = Address(pool, ip)
		}
	}
	*vm = given
	b.add(vm)
	return nil
}

// Address returns an address of a pool as VMs have it.
func Address(pool *topology.AddressPool, ip netip.Addr) fleet.Address {
	address := fleet.Address{
		Pool: pool.Name, CIDR: netip.PrefixFrom(ip, pool.Subnet.Bits()).String(), SearchDomains: pool.SearchDomains,
	}
	if pool.Gateway.IsValid() {
		address.Gateway = pool.Gateway.String()
	}
	for _, server := range pool.DNSServers {
		address.DNSServers = append(address.DNSServers, server.String())
	}
	return address
}

// Check returns an error if a VM must not be created or started with the static addresses in
// its file, because its pools do not assign them, or because a host or a Node has one: anyone
// who may write the fleet's files can change them. nodes maps the addresses of the cluster's
// Nodes to their names.
func Check(snapshot *topology.Snapshot, vm *fleet.VM, nodes map[string]string) error {
	for i := range vm.Networks {
		for _, address := range vm.Networks[i].Addresses {
			ip := address.IP()
			pool := snapshot.AddressPool(vm.Host.Region, address.Pool)
			if pool == nil {
				return &NoPoolError{Region: vm.Host.Region, Pool: address.Pool}
			}
			assigned := Address(pool, ip)
			switch {
			case !contains(pool, ip):
				return fmt.Errorf("net%d has the address %s, which address pool %q does not assign", i, address.CIDR, pool.Name)
			case address.CIDR != assigned.CIDR || address.Gateway != assigned.Gateway ||
				!slices.Equal(address.DNSServers, assigned.DNSServers) || !slices.Equal(address.SearchDomains, assigned.SearchDomains):
				return fmt.Errorf("net%d has the address %s with another prefix length, gateway, DNS server or search domain than address pool %q", i, address.CIDR, pool.Name)
			}
			for j := range snapshot.Hosts {
				if slices.Contains(snapshot.Hosts[j].Addresses, ip.String()) {
					return fmt.Errorf("net%d has the address %s of host %s", i, ip, snapshot.Hosts[j].Name)
				}
			}
			if node := nodes[ip.String()]; node != "" && node != vm.Name {
				return fmt.Errorf("net%d has the address %s of Node %s", i, ip, node)
			}
		}
	}
	return nil
}

// find returns the first free address of the pool at or after a position, or else from the
// beginning. It returns the zero Addr if none is free.
func (b *Book) find(pool *topology.AddressPool, position int, also []netip.Addr) netip.Addr {
	position %= Size(pool)
	var ranges []topology.AddressRange // of the pool, from the position on
	var before []topology.AddressRange
	for _, r := range pool.Ranges {
		n := count(r)
		switch {
		case position <= 0:
			ranges = append(ranges, r)
		case position >= n:
			before = append(before, r)
		default:
			at := plus(r.First, position)
			before = append(before, topology.AddressRange{First: r.First, Last: at.Prev()})
			ranges = append(ranges, topology.AddressRange{First: at, Last: r.Last})
		}
		position -= n
	}
	for _, r := range append(ranges, before...) {
		for ip := r.First; ip.Compare(r.Last) <= 0; ip = ip.Next() {
			if b.used[ip] == "" && !slices.Contains(also, ip) {
				return ip
			}
			if ip == r.Last { // Next of the very last address is invalid
				break
			}
		}
	}
	return netip.Addr{}
}
