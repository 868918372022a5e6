package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"regexp"
	"strings"
	"time"

	"github.com/numaform/numaform/topology"
)

// readHost reads the hardware and guests of a host without a Problem. It reads the report
// first, so that it does not query each guest of an unreachable host.
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
	guests := c.readGuests(ctx, host, listing.guests)
	c.mergeSources(host, found, &guests, c.readNotes(ctx, host))
	host.Warnings = append(host.Warnings, host.MachineWarnings...)
	return hostRead{gone: guests.gone, version: found.version}
}

// readGuestsOf reads only a host's guests, after checking that the host responds.
func (c *Client) readGuestsOf(ctx context.Context, host *topology.Host, guests []resource) hostRead {
	if host.Problem == "" {
		found, err := c.readStatus(ctx, host.Name)
		if err == nil {
			host.ReadAt = c.now()
			return hostRead{gone: c.readGuests(ctx, host, guests).gone, version: found.version}
		}
		failHost(host, err)
	}
	host.Guests = listed(guests)
	return hostRead{}
}

// hardware is what a host reports about itself.
type hardware struct {
	// report is the machine in its lscpu output, or empty.
	report topology.Machine
	// counts are the numbers of CPUs and the memory that Proxmox reports.
	counts  topology.Machine
	version string
}

// readHardware reads a host's report. The rest is in the host's entry in
// /cluster/resources. It reads the host's status only if the report cannot be read, or if
// the entry has no counts because pvestatd is not running.
func (c *Client) readHardware(ctx context.Context, host *topology.Host, node resource) (hardware, error) {
	found, slow, err := c.readReport(ctx, host.Name)
	if slow {
		warn(host, fmt.Sprintf("its report takes more than %s, and pveproxy gives up after 30: see on it how long `pvereport` takes and where it hangs", slowReport))
	}
	if err == nil && node.MaxCPU > 0 && node.MaxMem > 0 {
		found.counts = topology.FromCounts("", 0, 0, int(node.MaxCPU), node.MaxMem.mib())
		return found, nil
	}
	var refused *Error
	if errors.As(err, &refused) && refused.Status == statusUnreachable {
		return hardware{}, err
	}
	status, statusErr := c.readStatus(ctx, host.Name)
	if statusErr != nil {
		return hardware{}, statusErr
	}
	switch {
	case refused != nil && refused.Status == statusTimeout:
		warn(host, "its report takes longer than pveproxy waits ("+refused.reason()+"), so NUMA nodes are known from files only: "+
			"see on it how long `pvereport` takes and where it hangs, or run `numaform topology collect` on it and name the file under machines in numaform.yaml")
		return status, nil
	case err != nil:
		warn(host, "its report cannot be read, so NUMA nodes are known from files only: "+short(err))
		return status, nil
	}
	found.counts = status.counts
	return found, nil
}

// readStatus reads Proxmox' counts of a host's hardware.
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

// failHost sets why a host cannot be used.
func failHost(host *topology.Host, err error) {
	var refused *Error
	if errors.As(err, &refused) && refused.noAnswer() {
		host.Online = false
		if refused.Status == statusTimeout {
			addProblem(host, fmt.Sprintf("takes longer to answer than pveproxy waits (%s): look at its load, and at pvedaemon and pvestatd on it", refused.reason()))
			return
		}
		addProblem(host, fmt.Sprintf("cannot be reached (%s): start it, or look at pveproxy and pvestatd on it", refused.reason()))
		return
	}
	addProblem(host, "cannot be read: "+short(err))
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
	found.version = reportVersion(report)
	found.report, err = topology.ParseLscpu(report)
	return found, slow, err
}

// slowReport is the duration from which a report causes a warning: pveproxy waits 30 s
// for the daemon that creates the report, and then responds with 596 (pve-http-server
// 6.0.5, PVE/APIServer/AnyEvent.pm:835).
const slowReport = 20 * time.Second

// runningVersion matches the version in "pve-manager: 9.0.3 (running version:
// 9.0.3/5bd5b0ff1e5c2a4b)".
var runningVersion = regexp.MustCompile(`(?m)^pve-manager: \S+ \(running version: (\d[0-9A-Za-z.~+-]{0,30})/`)

// reportVersion returns the Proxmox VE version from a report's list of packages, or "".
// It reads no other section.
func reportVersion(report string) string {
	_, rest, _ := strings.Cut(report, "\n# pveversion")
	packages, _, _ := strings.Cut(rest, "\n#")
	if found := runningVersion.FindStringSubmatch(packages); found != nil {
		return found[1]
	}
	return ""
}
