package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Address is a static address of a network device, with what the guest needs to use it.
type Address struct {
	// Pool is the name of the address pool in the VM's region.
	Pool string `json:"pool"`
	// CIDR is the address with the prefix length of its subnet: 192.168.1.7/24. It is empty
	// in a Spec, like all fields but Pool.
	CIDR          string   `json:"address,omitempty"`
	Gateway       string   `json:"gateway,omitempty"`
	DNSServers    []string `json:"dns_servers,omitempty"`
	SearchDomains []string `json:"search_domains,omitempty"`
}

// AddressPools returns the names of the pools of the device's addresses, sorted.
func (n *Network) AddressPools() []string {
	var names []string
	for i := range n.Addresses {
		names = append(names, n.Addresses[i].Pool)
	}
	slices.Sort(names)
	return names
}

// IP returns the address without the prefix length, or the zero Addr if it is invalid.
func (a *Address) IP() netip.Addr {
	prefix, err := netip.ParsePrefix(a.CIDR)
	if err != nil {
		return netip.Addr{}
	}
	return prefix.Addr()
}

// Addresses returns the static addresses of a VM, without their prefix lengths.
func (vm *VM) Addresses() []netip.Addr {
	var all []netip.Addr
	for i := range vm.Networks {
		for j := range vm.Networks[i].Addresses {
			if ip := vm.Networks[i].Addresses[j].IP(); ip.IsValid() {
				all = append(all, ip)
			}
		}
	}
	return all
}

// addressesPrefix begins the line of a description with the static addresses of a VM.
const addressesPrefix = "Addresses: "

// AddressesLine returns the line of a VM's description with its static addresses, or "" if
// it has none: "Addresses: net0 192.168.1.7/24 from nodes, net1 fd00::7/64 from storage."
func AddressesLine(networks []Network) string {
	var parts []string
	for i := range networks {
		for _, address := range networks[i].Addresses {
			parts = append(parts, fmt.Sprintf("net%d %s from %s", i, address.CIDR, address.Pool))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return addressesPrefix + strings.Join(parts, ", ") + "."
}

// ParseAddresses returns the addresses in the AddressesLine of a VM's description, sorted.
// It ignores what is not an address, because users can edit descriptions.
func ParseAddresses(description string) []netip.Addr {
	var all []netip.Addr
	for line := range strings.Lines(description) {
		text, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), addressesPrefix)
		if !ok {
			continue
		}
		for word := range strings.FieldsSeq(text) {
			if prefix, err := netip.ParsePrefix(word); err == nil {
				all = append(all, prefix.Addr())
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
