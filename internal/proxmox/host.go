package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptrace"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/topology"
)

// slowReport is the duration from which a report causes a warning: pveproxy waits 30 s
// for the daemon that creates the report, and then responds with 596 (pve-http-server
// 6.0.5, PVE/APIServer/AnyEvent.pm:835).
const slowReport = 20 * time.Second

// The ages at which the host agent's data is read again, on a host that is queried and on a
// host that is only listed. The agent publishes every five minutes, and its data is
// outdated after fifteen.
const (
	notesAge       = time.Minute
	listedNotesAge = 5 * time.Minute
)

// bootTime is how long a host that has restarted is read again if its report cannot be read:
// while its guests start, the report can exceed pveproxy's timeout.
const bootTime = 5 * time.Minute

// runningVersion matches the version in "pve-manager: 9.0.3 (running version:
// 9.0.3/5bd5b0ff1e5c2a4b)".
var runningVersion = regexp.MustCompile(`(?m)^pve-manager: \S+ \(running version: (\d[0-9A-Za-z.~+-]{0,30})/`)

// readHost reads the hardware and guests of a host. It reads the report first, so that it
// does not query each guest of an unreachable host. A host with a Problem gets the listed
// guests instead.
func (c *Client) readHost(ctx context.Context, host *topology.Host, listing hostListing) hostRead {
	if host.Problem != "" {
		host.Guests = listed(listing.guests)
		return hostRead{}
	}
	found, err := c.readHardware(ctx, host, listing.node)
	if err != nil {
		failHost(host, err)
		host.Guests = listed(listing.guests)
		return hostRead{}
	}
	host.ReadAt = c.now()
	guests := c.readGuests(ctx, host, listing.guests, nil)
	c.mergeSources(ctx, host, found, &guests)
	if c.cfg.Addresses {
		c.readAddresses(ctx, host)
	}
	entry := entryOf(listing.node)
	booting := entry.Uptime > 0 && entry.Uptime < bootTime
	if !booting || host.Sources[topology.FactNUMA] != topology.SourceAssumed {
		host.Entry = entry
	}
	host.Warnings = append(host.Warnings, host.MachineWarnings...)
	return hostRead{gone: guests.gone, version: found.version}
}

// entryOf returns the part of a host's list entry that shows a restart or other hardware. It is
// zero while the host's pvestatd does not run.
func entryOf(node resource) topology.HostEntry {
	return topology.HostEntry{CPUs: int(node.MaxCPU), MemoryMiB: node.MaxMem.mib(), Uptime: time.Duration(node.Uptime) * time.Second}
}

// hardwareChanged reports whether the hardware of a host can differ from the known one: the
// host has restarted since it was read, or is listed with other CPUs or memory.
func (c *Client) hardwareChanged(known *topology.Host, entry topology.HostEntry) bool {
	switch {
	case entry == (topology.HostEntry{}):
		return !known.Online // it may have restarted: pvestatd starts late
	case entry.CPUs != known.Entry.CPUs || entry.MemoryMiB != known.Entry.MemoryMiB:
		return true
	case entry.Uptime == 0: // unknown
		return false
	}
	// Just after a restart, the list can still contain the previous entry, which the next
	// uptime shows. After a long time without a read, the uptime can be longer again.
	return entry.Uptime < known.Entry.Uptime || entry.Uptime+uptimeSlack < c.cfg.Now().Sub(known.ReadAt)
}

// readAddresses reads the host's own addresses, or adds a warning. Proxmox omits bridges that
// the credential may not use.
func (c *Client) readAddresses(ctx context.Context, host *topology.Host) {
	var interfaces []struct {
		CIDR  string `json:"cidr"`
		CIDR6 string `json:"cidr6"`
	}
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/network", host.Name), &interfaces); err != nil {
		warn(host, "its addresses cannot be read, so an address pool may contain them: "+short(err))
		return
	}
	for _, i := range interfaces {
		for _, text := range []string{i.CIDR, i.CIDR6} {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				host.Addresses = append(host.Addresses, prefix.Addr().String())
			}
		}
	}
	slices.Sort(host.Addresses)
}

// hardware is what a host reports about itself.
type hardware struct {
	// report is the machine in its lscpu output, or empty.
	report topology.Machine
	// counts are the numbers of CPUs and the memory that Proxmox reports.
	counts  topology.Machine
	version string
}

// readHardware reads a host's report. The rest of the data is in the host's entry in
// /cluster/resources. It reads the host's status only if the report cannot be read, or if
// the entry has no counts because pvestatd is not running.
func (c *Client) readHardware(ctx context.Context, host *topology.Host, node resource) (hardware, error) {
	found, slow, err := c.readReport(ctx, host.Name)
	if slow {
		warn(host, fmt.Sprintf("its report takes more than %s, and pveproxy gives up after 30s: run `pvereport` on the host to see how long it takes and where it hangs", slowReport))
	}
	if err == nil && node.MaxCPU > 0 && node.MaxMem > 0 {
		found.counts = topology.FromCounts("", 0, 0, int(node.MaxCPU), node.MaxMem.mib())
		return found, nil
	}
	refused, _ := errors.AsType[*Error](err)
	if refused != nil && refused.Status == statusUnreachable {
		return hardware{}, err
	}
	status, statusErr := c.readStatus(ctx, host.Name)
	if statusErr != nil {
		return hardware{}, statusErr
	}
	switch {
	case refused != nil && refused.Status == statusTimeout:
		warn(host, "its report exceeds pveproxy's timeout ("+refused.reason()+"), so NUMA nodes are known only from files: "+
			"run `pvereport` on the host to see where it hangs, or run `numaform topology collect` on the host and add the file to machines in numaform.yaml")
		return status, nil
	case err != nil:
		warn(host, "its report cannot be read, so NUMA nodes are known only from files: "+short(err))
		return status, nil
	}
	found.counts = status.counts
	return found, nil
}

// readStatus reads the hardware counts that Proxmox reports for a host.
func (c *Client) readStatus(ctx context.Context, host topology.HostName) (hardware, error) {
	var status hostStatus
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/status", host), &status); err != nil {
		return hardware{}, err
	}
	cpu := status.CPUInfo
	machine := topology.FromCounts(cpu.Model, int(cpu.Sockets), int(cpu.Cores), int(cpu.CPUs), status.Memory.Total.mib())
	if status.Kernel.Machine == "aarch64" {
		machine.Arch = "arm64"
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(status.PVEVersion, "pve-manager/"), "/")
	return hardware{counts: machine, version: version}, nil
}

// failHost sets the Problem of a host that cannot be read.
func failHost(host *topology.Host, err error) {
	refused, ok := errors.AsType[*Error](err)
	if !ok || !refused.noAnswer() {
		addProblem(host, "cannot be read: "+short(err))
		return
	}
	host.Online = false
	if refused.Status == statusTimeout {
		addProblem(host, fmt.Sprintf("does not respond before pveproxy's timeout (%s): check its load, and pvedaemon and pvestatd on it", refused.reason()))
		return
	}
	addProblem(host, fmt.Sprintf("cannot be reached (%s): start it, or check pveproxy and pvestatd on it", refused.reason()))
}

// readReport reads the lscpu section of a host's report, which is the only place where
// Proxmox lists NUMA nodes, and the version of Proxmox VE. It ignores everything else,
// because the report contains the configuration of every guest. Slow reports whether it took
// longer than slowReport after it left the queue.
func (c *Client) readReport(ctx context.Context, host topology.HostName) (found hardware, slow bool, err error) {
	began := c.now()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { began = c.now() }})
	var report string
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/report", host), &report); err != nil {
		return hardware{}, false, err
	}
	slow = c.now().Sub(began) > slowReport

	_, rest, _ := strings.Cut(report, "\n# pveversion")
	packages, _, _ := strings.Cut(rest, "\n#")
	if version := runningVersion.FindStringSubmatch(packages); version != nil {
		found.version = version[1]
	}
	found.report, err = topology.ParseLscpu(report)
	return found, slow, err
}

// readNotes reads a host's notes, and its agent's data in them. The notes also contain
// the published topology; the same permission applies to both. It returns the notes.
func (c *Client) readNotes(ctx context.Context, host *topology.Host) (string, error) {
	var config struct {
		Description string `json:"description"`
	}
	err := c.get(ctx, fmt.Sprintf("/nodes/%s/config", host.Name), &config)
	host.NotesAt = host.ReadAt
	host.Agent = nil
	host.AgentProblem = ""
	if err != nil {
		host.AgentProblem = "its notes cannot be read: " + short(err)
		return "", err
	}
	agent, found, err := topology.ParseAgent(config.Description)
	switch {
	case err != nil:
		host.AgentProblem = "its data in the host's notes is invalid: " + err.Error()
	case found:
		host.Agent = &agent
	}
	return config.Description, nil
}

// keepAgent copies the previous data about a host's agent, and reads it again if it is
// older than age. If that fails for a reason other than a refusal, the previous data
// remains and ages.
func (c *Client) keepAgent(ctx context.Context, host, known *topology.Host, age time.Duration) {
	host.Agent = known.Agent
	host.AgentProblem = known.AgentProblem
	host.Contradicted = known.Contradicted
	host.NotesAt = known.NotesAt
	if host.Problem != "" {
		host.ReadAt = known.ReadAt
		return
	}
	if host.ReadAt.Sub(known.NotesAt) < age {
		return
	}
	_, err := c.readNotes(ctx, host)
	refused, _ := errors.AsType[*Error](err)
	if refused != nil && (refused.noAnswer() || refused.retryable()) && known.Agent != nil {
		host.Agent = known.Agent
		host.AgentProblem = ""
	}
}

// mergeSources reads the host's notes and merges the sources of its hardware data. The
// notes take precedence over a VM's description, because more users can create VMs than
// edit notes.
func (c *Client) mergeSources(ctx context.Context, host *topology.Host, found hardware, guests *guestsRead) {
	var published topology.Machine
	var where string // of the published topology
	vmids := slices.Sorted(maps.Keys(guests.published))
	switch len(vmids) {
	case 0:
	case 1:
		published = guests.published[vmids[0]]
		where = fmt.Sprintf("the topology in the description of guest %d", vmids[0])
	default:
		warn(host, fmt.Sprintf("guests %v all describe the host, so none is used: keep one of them", vmids))
	}

	fromGuest := where != ""
	notes, notesErr := c.readNotes(ctx, host)
	noted, ok, err := topology.ParsePublished(notes)
	switch {
	case err != nil:
		warn(host, "the topology in its notes is not used: "+err.Error())
	case ok:
		if fromGuest {
			warn(host, where+" is not used, because the host's notes contain one: remove one of them")
		}
		published = noted
		where = "the topology in its notes"
		host.Contradicted = noted.Contradiction(found.report, found.counts)
	}

	merged, warnings := topology.Merge(c.cfg.Machines[host.Name], guests.capacity, found.report, found.counts, published)
	if notesErr != nil && (fromGuest || merged.Confidence() != topology.ConfidenceExact || len(warnings) > 0) {
		warn(host, "its notes cannot be read, so a topology published there is unknown: "+short(notesErr))
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
