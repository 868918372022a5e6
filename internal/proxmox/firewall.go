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

// Firewall is the part of a VM's firewall that clones inherit.
type Firewall struct {
	// On reports whether it is enabled, for network devices with the firewall option.
	On bool
	// Device reports whether one of the VM's network devices has the firewall option.
	Device bool
	// Rules is the number of rules.
	Rules int
}

// FirewallOn reports whether the datacenter's firewall is enabled. Otherwise no guest's
// firewall has an effect.
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
