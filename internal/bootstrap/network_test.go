package bootstrap_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/bootstrap"
)

// addressed returns a VM with a card with addresses of both families, one with DHCP, and one
// without a gateway.
func addressed() *fleet.VM {
	vm := someVM()
	vm.Networks = []fleet.Network{
		{Bridge: "vmbr0", MAC: "BC:24:11:00:00:01", MTU: 1, Addresses: []fleet.Address{
			{Pool: "four", CIDR: "192.168.1.7/24", Gateway: "192.168.1.1", DNSServers: []string{"192.168.1.2"}, SearchDomains: []string{"lab.example"}},
			{Pool: "six", CIDR: "fd00::7/64", Gateway: "fd00::1", DNSServers: []string{"fd00::2", "192.168.1.2"}, SearchDomains: []string{"lab.example"}},
		}},
		{Bridge: "vmbr1", MAC: "BC:24:11:00:00:02"},
		{Bridge: "vmbr2", MAC: "BC:24:11:00:00:03", MTU: 9000, Addresses: []fleet.Address{{Pool: "storage", CIDR: "10.9.0.7/16"}}},
	}
	return vm
}

// rendered returns the network-config of a VM by a template.
func rendered(t *testing.T, template string, vm *fleet.VM) (got map[string]any) {
	t.Helper()
	templates := bootstrap.Defaults()
	templates[bootstrap.NetworkConfig] = template
	values := someValues(t)
	values.Network = bootstrap.ValuesOf(vm).Network
	documents, err := bootstrap.Render(templates, values)
	if err != nil {
		t.Fatal(err)
	}
	decodeYAML(t, documents[bootstrap.NetworkConfig], &got)
	return got
}

// TestNetworkOfVM checks the network-config of a VM with static addresses, by numaform's
// own template and in version 1.
func TestNetworkOfVM(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, template, want string }{
		{"version 2", bootstrap.Defaults()[bootstrap.NetworkConfig], `
version: 2
ethernets:
  net0:
    match: {macaddress: "bc:24:11:00:00:01"}
    dhcp4: false
    dhcp6: false
    addresses: [192.168.1.7/24, "fd00::7/64"]
    routes: [{to: 0.0.0.0/0, via: 192.168.1.1}, {to: "::/0", via: "fd00::1"}]
    nameservers: &dns {addresses: [192.168.1.2, "fd00::2"], search: [lab.example]}
  net1:
    match: {macaddress: "bc:24:11:00:00:02"}
    dhcp4: true
    dhcp6: false
    nameservers: *dns
  net2:
    match: {macaddress: "bc:24:11:00:00:03"}
    dhcp4: false
    dhcp6: false
    addresses: [10.9.0.7/16]
    mtu: 9000
    nameservers: *dns
`},
		{"version 1", "{{ networkConfigV1 .Network | toYaml }}", `
version: 1
config:
- type: physical
  name: net0
  mac_address: "bc:24:11:00:00:01"
  subnets:
  - {type: static, address: 192.168.1.7/24, gateway: 192.168.1.1}
  - {type: static6, address: "fd00::7/64", gateway: "fd00::1"}
- {type: physical, name: net1, mac_address: "bc:24:11:00:00:02", subnets: [{type: dhcp4}]}
- {type: physical, name: net2, mac_address: "bc:24:11:00:00:03", mtu: 9000, subnets: [{type: static, address: 10.9.0.7/16}]}
- {type: nameserver, address: [192.168.1.2, "fd00::2"], search: [lab.example]}
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := rendered(t, test.template, addressed())
			var want map[string]any
			decodeYAML(t, []byte(test.want), &want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("network-config (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDHCPVersion1 checks version 1 without static addresses.
func TestDHCPVersion1(t *testing.T) {
	t.Parallel()
	got := rendered(t, "{{ networkConfigV1 .Network | toYaml }}", someVM())
	var want map[string]any
	decodeYAML(t, []byte("{version: 1, config: [{type: physical, name: eth0, subnets: [{type: dhcp4}]}]}"), &want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("network-config (-want +got):\n%s", diff)
	}
}
