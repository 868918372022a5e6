package proxmox

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

// publisherName is the name of the VM in whose description a host's topology may be
// published, if only VMs can be written.
const publisherName = "numaform-topology"

// mergeSources merges what is known about a host's hardware. The notes take precedence
// over a VM, because more people can create VMs than edit notes.
func (c *Client) mergeSources(host *topology.Host, found hardware, guests *guestsRead, notes notesRead) {
	machines := []topology.Machine{c.cfg.Machines[host.Name], guests.capacity, found.report, found.counts}
	described, publisher := guests.onlyPublished(host)
	where := fmt.Sprintf("the topology in the description of guest %d", publisher)
	published, inNotes := notes.topology(host)
	switch {
	case inNotes:
		if publisher > 0 {
			warn(host, where+" is not used, as the host's notes have one: remove one of them")
		}
		where = "the topology in its notes"
		host.Contradicted = published.Contradiction(found.report, found.counts)
	default:
		published = described
	}
	merged, warnings := topology.Merge(append(machines, published)...)
	if notes.err != nil && (publisher > 0 || merged.Confidence() != topology.ConfidenceExact || len(warnings) > 0) {
		warn(host, "its notes cannot be read, so a topology that is published there is not known: "+short(notes.err))
	}
	host.Machine = merged
	for _, warning := range warnings {
		warn(host, "its topology: "+strings.Replace(warning, topology.Published, where, 1))
	}
}

// warn adds a warning about the host's hardware.
func warn(host *topology.Host, text string) {
	host.MachineWarnings = append(host.MachineWarnings, text)
}

// onlyPublished returns the topology published by the host's only publisher and its VMID,
// or 0 if there is none.
func (f *guestsRead) onlyPublished(host *topology.Host) (topology.Machine, int) {
	vmids := slices.Sorted(maps.Keys(f.published))
	switch len(vmids) {
	case 0:
		return topology.Machine{}, 0
	case 1:
		return f.published[vmids[0]], vmids[0]
	}
	warn(host, fmt.Sprintf("guests %v all describe the host, so none is believed: keep one of them", vmids))
	return topology.Machine{}, 0
}

// isCapacity reports whether a guest is the VM with which karpenter-provider-proxmox'
// host daemon describes a host.
func isCapacity(guest topology.Guest) bool {
	return guest.Name == "node-capacity" && guest.Kind == topology.GuestVM && !guest.Running && slices.Contains(guest.Tags, "karpenter")
}

// addCapacity reads the host's topology from such a VM.
func (f *guestsRead) addCapacity(host *topology.Host, guest topology.Guest, config values) {
	cells, err := readCells(config)
	if err == nil && strings.TrimSpace(config["affinity"]) == "" {
		err = errors.New("it has no affinity: list the host's CPUs there, or remove the VM")
	}
	var machine topology.Machine
	if err == nil {
		machine, err = topology.FromCapacity(config["affinity"], cells)
	}
	switch {
	case err != nil:
		host.Warnings = append(host.Warnings, fmt.Sprintf("guest %d does not describe the host: %s", guest.VMID, err))
	case len(f.capacity.CPUs) > 0:
		host.Warnings = append(host.Warnings, fmt.Sprintf("guest %d is a second node-capacity VM and not read: keep one of them", guest.VMID))
	default:
		f.capacity = machine
	}
}

// diskKey matches the options of a VM's configuration for disks and images.
var diskKey = regexp.MustCompile(`^(ide|sata|scsi|virtio|efidisk|tpmstate|unused)\d+$`)

// isPublisher reports whether a VM exists only for its description: it has no disk, so it
// never ran.
func isPublisher(guest topology.Guest, config values) bool {
	if guest.Name != publisherName || guest.Kind != topology.GuestVM || guest.Running || guest.Template {
		return false
	}
	for key := range config {
		if diskKey.MatchString(key) {
			return false
		}
	}
	return true
}

// addPublished reads the host's topology from such a VM.
func (f *guestsRead) addPublished(host *topology.Host, guest topology.Guest, config values) {
	machine, found, err := topology.ParsePublished(config["description"])
	switch {
	case err != nil:
		host.Warnings = append(host.Warnings, fmt.Sprintf("the topology in the description of guest %d is not used: %s", guest.VMID, err))
	case !found:
		host.Warnings = append(host.Warnings, fmt.Sprintf("guest %d has no topology in its description: "+
			"write there what `numaform topology collect -o notes` prints on the host", guest.VMID))
	default:
		if f.published == nil {
			f.published = map[int]topology.Machine{}
		}
		f.published[guest.VMID] = machine
	}
}
