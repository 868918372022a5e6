package bootstrap

import (
	"maps"
	"net/netip"
	"slices"
	"text/template"
	"text/template/parse"
)

// The methods in this file give values the names that they have in templates of
// karpenter-provider-proxmox (pkg/providers/instance/cloudinit/types.go and
// pkg/providers/instance/types.go, v0.12.0). Templates call methods without arguments like
// fields.

// NameServers returns DNSServers.
func (n Network) NameServers() []string { return n.DNSServers }

// MacAddr returns MAC.
func (i Interface) MacAddr() string { return i.MAC }

// DHCPv4 returns DHCP4.
func (i Interface) DHCPv4() bool { return i.DHCP4 }

// DHCPv6 returns DHCP6.
func (i Interface) DHCPv6() bool { return i.DHCP6 }

// Address4 returns the IPv4 addresses.
func (i Interface) Address4() []string { return i.family(true) }

// Address6 returns the IPv6 addresses.
func (i Interface) Address6() []string { return i.family(false) }

func (i Interface) family(want4 bool) []string {
	return slices.DeleteFunc(slices.Clone(i.Addresses), func(address string) bool {
		prefix, err := netip.ParsePrefix(address)
		return err != nil || prefix.Addr().Is4() != want4
	})
}

// SLAAC reports whether the interface has no IPv6 configuration of its own, so that the guest
// uses the prefix that a router announces.
func (i Interface) SLAAC() bool { return !i.DHCP6 && len(i.Address6()) == 0 }

// NodeAddress4 and the next three methods return "": numaform does not read the addresses of
// the host's bridges. A template then relies on what routers announce.
func (Interface) NodeAddress4() string { return "" }

// NodeAddress6 returns "". See NodeAddress4.
func (Interface) NodeAddress6() string { return "" }

// NodeGateway4 returns "". See NodeAddress4.
func (Interface) NodeGateway4() string { return "" }

// NodeGateway6 returns "". See NodeAddress4.
func (Interface) NodeGateway6() string { return "" }

// Memory returns the memory in bytes.
func (r Resources) Memory() int64 { return r.MemoryMiB << 20 }

// Hugepages2Mi returns HugePages2Mi.
func (r Resources) Hugepages2Mi() int64 { return r.HugePages2Mi }

// Hugepages1Gi returns HugePages1Gi.
func (r Resources) Hugepages1Gi() int64 { return r.HugePages1Gi }

// separatorLast changes calls such as `split .Values.Keys ","`, in the order of
// karpenter-provider-proxmox, to the order of split: a literal is the separator, never the
// text. In the order of split, a template could only split a literal by a value.
func separatorLast(parsed *template.Template) {
	for _, one := range parsed.Templates() {
		if one.Tree == nil || one.Root == nil {
			continue
		}
		walk(one.Root, func(node parse.Node) bool {
			call, ok := node.(*parse.CommandNode)
			if !ok || len(call.Args) != 3 {
				return true
			}
			name, _ := call.Args[0].(*parse.IdentifierNode)
			_, firstLiteral := call.Args[1].(*parse.StringNode)
			_, secondLiteral := call.Args[2].(*parse.StringNode)
			if name != nil && name.Ident == "split" && secondLiteral && !firstLiteral {
				call.Args[1], call.Args[2] = call.Args[2], call.Args[1]
			}
			return true
		})
	}
}

// KubeletSettings returns the fields of KubeletConfiguration that depend on the node, without
// the ones that are the same for all nodes. In karpenter-provider-proxmox, templates have only
// these, and Talos refuses some of the others.
func (k Kubernetes) KubeletSettings() map[string]any {
	settings := maps.Clone(k.KubeletConfiguration)
	for _, common := range []string{"apiVersion", "kind", "authentication", "authorization", "cgroupDriver", "clusterDomain", "rotateCertificates"} {
		delete(settings, common)
	}
	return settings
}
