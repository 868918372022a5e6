package proxmox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/numaform/numaform/topology"
)

// readHost reads hardware and guests of a host that has no Problem yet. It
// returns the guests that do not exist there any more.
func (c *Client) readHost(ctx context.Context, host *topology.Host, guests []resource) []resource {
	if host.Problem != "" {
		host.Guests = listed(guests)
		return nil
	}
	counts, err := c.readStatus(ctx, host)
	if err != nil {
		failHost(host, err)
		host.Guests = listed(guests)
		return nil
	}
	var (
		report topology.Machine
		found  guestsRead
		wg     sync.WaitGroup
	)
	wg.Go(func() { report, err = c.readReport(ctx, host.Name) })
	wg.Go(func() { found = c.readGuests(ctx, host, guests) })
	wg.Wait()
	if err != nil {
		host.Warnings = append(host.Warnings,
			"its report cannot be read, so NUMA nodes are known from files only: "+short(err))
	}
	var warnings []string
	host.Machine, warnings = topology.Merge(c.cfg.Machines[host.Name], found.capacity, report, counts)
	host.Warnings = append(host.Warnings, warnings...)
	return found.gone
}

// readGuestsOf reads a host's guests alone, after asking whether it is there.
func (c *Client) readGuestsOf(ctx context.Context, host *topology.Host, guests []resource) []resource {
	if host.Problem == "" {
		_, err := c.readStatus(ctx, host)
		if err == nil {
			return c.readGuests(ctx, host, guests).gone
		}
		failHost(host, err)
	}
	host.Guests = listed(guests)
	return nil
}

// readStatus reads the counts that Proxmox gives of a host's hardware.
func (c *Client) readStatus(ctx context.Context, host *topology.Host) (topology.Machine, error) {
	var status hostStatus
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/status", host.Name), &status); err != nil {
		return topology.Machine{}, err
	}
	cpu := status.CPUInfo
	machine := topology.FromCounts(cpu.Model, int(cpu.Sockets), int(cpu.Cores), int(cpu.CPUs), status.Memory.Total.mib())
	if status.Kernel.Machine == "aarch64" {
		machine.Arch = "arm64"
	}
	return machine, nil
}

// failHost says why a host cannot be used.
func failHost(host *topology.Host, err error) {
	var refused *Error
	if errors.As(err, &refused) && refused.noAnswer() {
		host.Online = false
		addProblem(host, fmt.Sprintf("cannot be reached (%s): start it, or look at pveproxy and pvestatd on it", refused.reason()))
		return
	}
	addProblem(host, "cannot be read: "+short(err))
}

// readReport reads the lscpu block of a host's report, which is the one place
// where Proxmox tells NUMA nodes. Everything else in it is none of our business:
// it lists the configuration of every guest.
func (c *Client) readReport(ctx context.Context, host topology.HostName) (topology.Machine, error) {
	var report string
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/report", host), &report); err != nil {
		return topology.Machine{}, err
	}
	return topology.ParseLscpu(report)
}
