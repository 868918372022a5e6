package proxmox

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

var devicePattern = regexp.MustCompile(`^net\d+$`)

// Firewall is what clones inherit of a VM's firewall.
type Firewall struct {
	// On is whether it filters, for those network devices that go through it.
	On bool
	// Device is whether one of the VM's network devices does.
	Device bool
	// Rules is how many there are.
	Rules int
}

// FirewallOn reports whether the firewall of the datacenter is on. Without it, that of
// no guest filters.
func (c *Client) FirewallOn(ctx context.Context) (bool, error) {
	var options values
	if err := c.get(ctx, "/cluster/firewall/options", &options); err != nil {
		return false, fmt.Errorf("reading the firewall of region %s: %w", c.cfg.Region, err)
	}
	return options["enable"] != "" && options["enable"] != "0", nil
}

// FirewallOf reads the firewall of a VM.
func (c *Client) FirewallOf(ctx context.Context, host topology.HostName, vmid int) (Firewall, error) {
	var (
		options, config values
		rules           []values
		path            = fmt.Sprintf("/nodes/%s/qemu/%d", host, vmid)
	)
	for _, one := range []struct {
		path string
		into any
	}{{"/firewall/options", &options}, {"/firewall/rules", &rules}, {"/config", &config}} {
		if err := c.get(ctx, path+one.path, one.into); err != nil {
			return Firewall{}, fmt.Errorf("reading the firewall of VM %d: %w", vmid, err)
		}
	}
	found := Firewall{On: options.is("enable"), Rules: len(rules)}
	for key, device := range config {
		found.Device = found.Device || devicePattern.MatchString(key) && slices.Contains(strings.Split(device, ","), "firewall=1")
	}
	return found, nil
}
