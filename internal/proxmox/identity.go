package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Identity is what distinguishes a VM from any other, and what a snapshot lacks about a VM
// that is not part of numaform's fleet.
type Identity struct {
	Name string
	// UUID is the VM's SMBIOS UUID; empty if it has none.
	UUID string
	// MACs are the addresses of net0, net1, …
	MACs []string
	// CPUType is the CPU type without its flags, and Tags are the VM's tags.
	CPUType string
	Tags    []string
	// Privileged are the options by which the VM may reach its host, such as args. numaform
	// manages no VM with such options.
	Privileged []string
	// NoSCSIHardware is set if the VM has no option scsihw. The provider then writes a
	// controller other than the default of Proxmox, whatever a module ignores.
	NoSCSIHardware bool
	// Marker is numaform's marker in the description; zero if there is none.
	Marker fleet.Marker
}

// Equal reports whether two readings are of the same VM.
func (i *Identity) Equal(o *Identity) bool {
	return i.Name == o.Name && i.UUID == o.UUID && slices.Equal(i.MACs, o.MACs)
}

// maxNets is the number of netN options of a VM in Proxmox.
const maxNets = 32

// defaultCPUType is the CPU type of a VM without the option cpu.
const defaultCPUType = "kvm64"

// Identify reads a VM that runs on a host, whoever it belongs to.
func (c *Client) Identify(ctx context.Context, host topology.HostName, vmid fleet.VMID) (*Identity, error) {
	var config values
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/qemu/%d/config?current=1", host, vmid), &config); err != nil {
		return nil, fmt.Errorf("reading guest %d: %w", vmid, err)
	}
	first := func(option string) string {
		text, _, _ := strings.Cut(config[option], ",")
		return text
	}
	id := &Identity{
		Name: config["name"], Tags: list(config["tags"]), NoSCSIHardware: config["scsihw"] == "",
		CPUType: cmp.Or(strings.TrimPrefix(first("cpu"), "cputype="), defaultCPUType),
	}
	id.Marker, _ = fleet.ParseMarker(config["description"])
	for field := range strings.SplitSeq(config["smbios1"], ",") {
		if uuid, ok := strings.CutPrefix(field, "uuid="); ok {
			id.UUID = strings.ToLower(uuid)
		}
	}
	for i := range maxNets {
		if _, mac, ok := strings.Cut(first(fmt.Sprintf("net%d", i)), "="); ok {
			id.MACs = append(id.MACs, strings.ToUpper(mac))
		}
	}
	for option, value := range config {
		raw := strings.HasPrefix(option, "hostpci") && !strings.Contains(value, "mapping=") ||
			strings.HasPrefix(option, "usb") && !strings.Contains(value, "mapping=") && !strings.HasPrefix(value, "spice")
		if option == "args" || option == "hookscript" || raw {
			id.Privileged = append(id.Privileged, option)
		}
	}
	slices.Sort(id.Privileged)
	return id, nil
}
