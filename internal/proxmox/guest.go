package proxmox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// defaultMemoryMiB is the memory of a guest without a memory option.
const defaultMemoryMiB = 512

// guestsRead is what was read of a host's guests, except the guests themselves.
type guestsRead struct {
	// gone are guests that are no longer on the host.
	gone []resource
	// capacity is the host's machine as described by a node-capacity VM.
	capacity topology.Machine
	// published are the VMs in whose description the host's topology is published, with
	// that topology.
	published map[int]topology.Machine
}

// readGuests sets the running values of the host's guests. It sets a Problem if some
// cannot be read, because their pins are then unknown.
func (c *Client) readGuests(ctx context.Context, host *topology.Host, guests []resource) guestsRead {
	guests = slices.SortedFunc(slices.Values(guests), func(a, b resource) int { return cmp.Compare(a.VMID, b.VMID) })
	configs := make([]values, len(guests))
	errs := make([]error, len(guests))
	var group errgroup.Group
	group.SetLimit(c.cfg.MaxInFlight)
	for i, listed := range guests {
		group.Go(func() error {
			errs[i] = c.get(ctx, guestPath(host.Name, listed), &configs[i])
			return nil
		})
	}
	_ = group.Wait() // errs contains the errors
	var found guestsRead
	for i, listed := range guests {
		var refused *Error
		if errors.As(errs[i], &refused) && refused.gone() {
			found.gone = append(found.gone, listed)
			continue
		}
		found.add(host, listed, configs[i], errs[i])
	}
	return found
}

func guestPath(host topology.HostName, r resource) string {
	return fmt.Sprintf("/nodes/%s/%s/%d/config?current=1", host, r.Type, int(r.VMID))
}

// add adds what was read about one guest, or its error.
func (f *guestsRead) add(host *topology.Host, listed resource, config values, err error) {
	guest := listedGuest(listed)
	if err == nil {
		err = readConfig(&guest, config)
	}
	switch {
	case err != nil:
		addProblem(host, fmt.Sprintf("guest %d cannot be read, so its CPUs and memory are unknown: %s", guest.VMID, short(err)))
	case guest.Template && guest.Kind == topology.GuestVM:
		host.Templates = append(host.Templates, readTemplate(guest, config))
	case isCapacity(guest):
		f.addCapacity(host, guest, config)
	case isPublisher(guest, config):
		f.addPublished(host, guest, config)
	}
	if guest.Template || isCapacity(guest) || isPublisher(guest, config) { // they never run
		guest.VCPUs, guest.MemoryMiB, guest.HugePagesKiB, guest.Pins, guest.NUMA, guest.PCIDevices, guest.Disks = 0, 0, 0, topology.CPUSet{}, nil, nil, nil
	}
	host.Guests = append(host.Guests, guest)
}

// listedGuest returns a guest with the data in /cluster/resources.
func listedGuest(r resource) topology.Guest {
	return topology.Guest{
		VMID:      int(r.VMID),
		Name:      r.Name,
		Kind:      topology.GuestKind(r.Type),
		Running:   r.Status == "running",
		Template:  r.Template != 0,
		VCPUs:     int(r.MaxCPU),
		MemoryMiB: r.MaxMem.mib(),
		Tags:      list(r.Tags),
		Lock:      r.Lock,
	}
}

// listed returns the guests of a host that is not queried.
func listed(resources []resource) []topology.Guest {
	var guests []topology.Guest
	for _, r := range resources {
		guests = append(guests, listedGuest(r))
	}
	return guests
}

// readConfig sets a guest's fields from its running configuration. From the description
// it keeps only numaform's marker.
func readConfig(guest *topology.Guest, config values) error {
	guest.Name = cmp.Or(config["name"], config["hostname"], guest.Name)
	guest.Lock = config["lock"]
	guest.Template = config.is("template")
	guest.Tags = list(config["tags"])
	memory, err := memoryMiB(config["memory"])
	if err != nil {
		return err
	}
	guest.MemoryMiB = memory
	if guest.Kind == topology.GuestContainer {
		return readContainer(guest, config)
	}
	return readVM(guest, config)
}

func readVM(guest *topology.Guest, config values) error {
	cores, err := config.count("cores", 1)
	if err != nil {
		return err
	}
	sockets, err := config.count("sockets", 1)
	if err != nil {
		return err
	}
	guest.VCPUs = cores * sockets
	if guest.Pins, err = topology.ParseCPUSet(config["affinity"]); err != nil {
		return fmt.Errorf("reading affinity: %w", err)
	}
	if marker, ok := fleet.ParseMarker(config["description"]); ok {
		guest.ClusterID, guest.Key = marker.ClusterID, string(marker.Key)
		guest.Pins = guest.Pins.Union(topology.CPUs(marker.Pins...))
		guest.Disks = disks(config)
	}
	guest.PCIDevices = readDevices(config)
	if guest.HugePagesKiB, err = hugePages(config["hugepages"]); err != nil || !config.is("numa") {
		return err
	}
	guest.NUMA, err = readCells(config)
	return err
}

// hugePages parses the size of a VM's huge pages, which Proxmox stores in MiB.
func hugePages(text string) (kib int, err error) {
	switch text {
	case "":
		return 0, nil
	case "any":
		return topology.Unknown, nil
	}
	mib, err := strconv.Atoi(text)
	if err != nil || mib < 1 || mib > 1<<20 {
		return 0, errors.New("hugepages: want any or a number of MiB")
	}
	return mib << 10, nil
}

// maxCells is the number of numaN options in Proxmox.
const maxCells = 8

func readCells(config values) ([]topology.NUMACell, error) {
	var cells []topology.NUMACell
	for i := range maxCells {
		key := "numa" + strconv.Itoa(i)
		text, ok := config[key]
		if !ok {
			continue
		}
		cell, err := topology.ParseNUMA(text)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", key, err)
		}
		cells = append(cells, cell)
	}
	return cells, nil
}

// readContainer reads a container's core limit, and a CPU set that an administrator may
// have added to its config file.
func readContainer(guest *topology.Guest, config values) error {
	var err error
	if guest.VCPUs, err = config.count("cores", 0); err != nil {
		return err
	}
	var raw [][]string
	if text := config["lxc"]; text != "" && json.Unmarshal([]byte(text), &raw) != nil {
		return errors.New("lxc: want a list of pairs")
	}
	for _, pair := range raw {
		if len(pair) != 2 || !strings.HasSuffix(pair[0], ".cpuset.cpus") {
			continue
		}
		if guest.Pins, err = topology.ParseCPUSet(pair[1]); err != nil {
			return fmt.Errorf("reading %s: %w", pair[0], err)
		}
	}
	return nil
}

// memoryMiB parses "2048", and "current=2048" as in Proxmox 8 and newer.
func memoryMiB(text string) (int64, error) {
	if text == "" {
		return defaultMemoryMiB, nil
	}
	for field := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(field, "=")
		if ok && key != "current" {
			continue
		}
		if mib, err := strconv.ParseInt(cmp.Or(value, key), 10, 64); err == nil && mib >= 0 {
			return mib, nil
		}
	}
	return 0, errors.New("memory: want a number of MiB")
}

// short formats an error for a host's Problem or Warnings.
func short(err error) string {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.advice()
	}
	return err.Error()
}
