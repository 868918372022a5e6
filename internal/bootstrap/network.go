package bootstrap

import (
	"cmp"
	"errors"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/fleet"
)

var errPrefix = errors.New("requires an address with a prefix length, such as 192.168.0.5/24")

// cidrHost returns the address in "192.168.0.5/24" or, with a number, the address of that
// host in the network. A negative number counts from the end of the network.
func cidrHost(prefix string, number ...int) (string, error) {
	network, err := netip.ParsePrefix(prefix)
	if err != nil || len(number) > 1 {
		return "", errPrefix
	}
	if len(number) == 0 {
		return network.Addr().String(), nil
	}
	free := network.Addr().BitLen() - network.Bits()
	host := big.NewInt(int64(number[0]))
	size := new(big.Int).Lsh(big.NewInt(1), uint(free))
	if host.Sign() < 0 {
		host.Add(host, size)
	}
	if host.Sign() < 0 || host.Cmp(size) >= 0 {
		return "", errors.New("requires a host number in the network")
	}
	base := new(big.Int).SetBytes(network.Masked().Addr().AsSlice())
	bytes := base.Or(base, host).FillBytes(make([]byte, network.Addr().BitLen()/8))
	address, _ := netip.AddrFromSlice(bytes)
	return address.String(), nil
}

// macBytes is the length of a MAC address in bytes.
const macBytes = 6

// cidrSLAAC returns the IPv6 address, with its prefix length, that a machine with a MAC
// address assigns to itself (RFC 4291, appendix A). A prefix longer than 64 bits replaces
// bits of the interface identifier.
func cidrSLAAC(mac, prefix string) (string, error) {
	network, err := netip.ParsePrefix(prefix)
	if err != nil || !network.Addr().Is6() || network.Addr().Is4In6() {
		return "", errors.New("requires an IPv6 network, such as 2001:db8::/64")
	}
	parts := strings.FieldsFunc(mac, func(r rune) bool { return r == ':' || r == '-' })
	if len(parts) != macBytes {
		return "", errors.New("requires a MAC address, such as 00:1a:2b:3c:4d:5e")
	}
	var id [macBytes]byte
	for i, part := range parts {
		value, err := strconv.ParseUint(part, 16, 8)
		if err != nil {
			return "", errors.New("requires a MAC address, such as 00:1a:2b:3c:4d:5e")
		}
		id[i] = byte(value)
	}
	const universal = 2 // the bit for an address assigned by the manufacturer
	host := netip.AddrFrom16([16]byte{
		8: id[0] ^ universal, 9: id[1], 10: id[2], 11: 0xff, 12: 0xfe, 13: id[3], 14: id[4], 15: id[5],
	})
	merged := network.Masked().Addr().As16()
	for i, b := range host.As16() {
		prefixBits := max(0, min(8, network.Bits()-8*i)) // the bits of this byte in the prefix
		merged[i] |= b & byte(0xff>>prefixBits)
	}
	return netip.PrefixFrom(netip.AddrFrom16(merged), network.Bits()).String(), nil
}

// networkOf returns the network of a VM with static addresses, or the zero Network. Devices
// without addresses use DHCP.
func networkOf(vm *fleet.VM) Network {
	if len(vm.Addresses()) == 0 {
		return Network{}
	}
	var network Network
	for i := range vm.Networks {
		device := &vm.Networks[i]
		card := Interface{Name: "net" + strconv.Itoa(i), MAC: device.MAC, DHCP4: len(device.Addresses) == 0}
		if device.MTU > 1 { // 1 means the bridge's MTU, which the device itself reports
			card.MTU = device.MTU
		}
		for _, address := range device.Addresses {
			card.Addresses = append(card.Addresses, address.CIDR)
			if address.IP().Is4() {
				card.Gateway4 = address.Gateway
			} else {
				card.Gateway6 = address.Gateway
			}
			network.DNSServers = appendNew(network.DNSServers, address.DNSServers)
			network.SearchDomains = appendNew(network.SearchDomains, address.SearchDomains)
		}
		network.Interfaces = append(network.Interfaces, card)
	}
	return network
}

// appendNew appends the texts that the list does not contain.
func appendNew(list, texts []string) []string {
	for _, text := range texts {
		if !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	return list
}

// networkConfigV1 returns a network in version 1 of cloud-init's format, for images whose
// cloud-init or network tools do not know version 2. Version 1 names each interface, so
// patterns are not possible: without interfaces, eth0 uses DHCP.
func networkConfigV1(network Network) (map[string]any, error) {
	interfaces := network.Interfaces
	if len(interfaces) == 0 {
		interfaces = []Interface{{Name: "eth0", DHCP4: true}}
	}
	var config []any
	for i, card := range interfaces {
		if strings.ContainsAny(card.Name, "*?[") {
			return nil, errors.New("requires interfaces with a name")
		}
		settings := map[string]any{"type": "physical", "name": cmp.Or(card.Name, "net"+strconv.Itoa(i))}
		if card.MAC != "" {
			settings["mac_address"] = strings.ToLower(card.MAC)
		}
		if card.MTU > 0 {
			settings["mtu"] = card.MTU
		}
		var subnets []any
		for _, kind := range []struct {
			dhcp bool
			name string
		}{{card.DHCP4, "dhcp4"}, {card.DHCP6, "dhcp6"}} {
			if kind.dhcp {
				subnets = append(subnets, map[string]any{"type": kind.name})
			}
		}
		for _, address := range card.Addresses {
			subnet := map[string]any{"type": "static", "address": address}
			gateway := card.Gateway4
			if strings.Contains(address, ":") {
				subnet["type"] = "static6"
				gateway = card.Gateway6
			}
			if gateway != "" {
				subnet["gateway"] = gateway
			}
			subnets = append(subnets, subnet)
		}
		if len(subnets) > 0 {
			settings["subnets"] = subnets
		}
		config = append(config, settings)
	}
	if len(network.DNSServers)+len(network.SearchDomains) > 0 {
		nameserver := map[string]any{"type": "nameserver"}
		if len(network.DNSServers) > 0 {
			nameserver["address"] = network.DNSServers
		}
		if len(network.SearchDomains) > 0 {
			nameserver["search"] = network.SearchDomains
		}
		config = append(config, nameserver)
	}
	return map[string]any{"version": 1, "config": config}, nil
}

// networkConfig returns a network in version 2 of netplan's format. cloud-init translates it
// for guests without netplan.
func networkConfig(network Network) map[string]any {
	interfaces := network.Interfaces
	if len(interfaces) == 0 {
		interfaces = []Interface{{Name: "en*", DHCP4: true}, {Name: "eth*", DHCP4: true}}
	}
	ethernets := map[string]any{}
	for i, card := range interfaces {
		// The key is the name of the interface, or its index if the name is a pattern.
		id := card.Name
		if card.MAC == "" && strings.ContainsAny(card.Name, "*?[") || card.Name == "" {
			id = "net" + strconv.Itoa(i)
		}
		settings := map[string]any{"dhcp4": card.DHCP4, "dhcp6": card.DHCP6}
		switch {
		case card.MAC != "":
			settings["match"] = map[string]any{"macaddress": strings.ToLower(card.MAC)}
		case id != card.Name:
			settings["match"] = map[string]any{"name": card.Name}
		}
		if len(card.Addresses) > 0 {
			settings["addresses"] = card.Addresses
		}
		var routes []any
		for _, route := range [][2]string{{"0.0.0.0/0", card.Gateway4}, {"::/0", card.Gateway6}} {
			if route[1] != "" {
				routes = append(routes, map[string]any{"to": route[0], "via": route[1]})
			}
		}
		if len(routes) > 0 {
			settings["routes"] = routes
		}
		if card.MTU > 0 {
			settings["mtu"] = card.MTU
		}
		nameservers := map[string]any{}
		if len(network.DNSServers) > 0 {
			nameservers["addresses"] = network.DNSServers
		}
		if len(network.SearchDomains) > 0 {
			nameservers["search"] = network.SearchDomains
		}
		if len(nameservers) > 0 {
			settings["nameservers"] = nameservers
		}
		ethernets[id] = settings
	}
	return map[string]any{"version": 2, "ethernets": ethernets}
}
