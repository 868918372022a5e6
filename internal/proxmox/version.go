package proxmox

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// OldestVersion is the oldest major version of Proxmox VE that numaform supports.
const OldestVersion = 8

// TooOldError reports that a Proxmox VE is too old.
type TooOldError struct {
	Region  topology.RegionName
	Version string
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("region %s runs Proxmox VE %s: numaform needs %d or newer: upgrade its hosts (https://pve.proxmox.com/wiki/Category:Upgrade)",
		e.Region, e.Version, OldestVersion)
}

// Version returns the version of the responding Proxmox VE, together with a *TooOldError
// if numaform does not support it.
func (c *Client) Version(ctx context.Context) (string, error) {
	var answer struct {
		Version string `json:"version"`
	}
	if err := c.get(ctx, "/version", &answer); err != nil {
		return "", err
	}
	return answer.Version, c.checkVersion(answer.Version)
}

// checkVersion refuses a version that is too old. It accepts an empty or unparseable
// version, because reports may lack it.
func (c *Client) checkVersion(text string) error {
	major, _, _ := strings.Cut(text, ".")
	if number, err := strconv.Atoi(major); err == nil && number < OldestVersion {
		return &TooOldError{Region: c.cfg.Region, Version: text}
	}
	return nil
}

// MapsCPUModels reports whether a Proxmox VE of that version requires Mapping.Use on
// /mapping/cpu/NAME for a VM with the custom CPU model NAME. This was added in
// qemu-server 9.1.13, with Proxmox VE 9.2.
func MapsCPUModels(version string) bool {
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	return major > 9 || major == 9 && minor >= 2
}

// CPUModels returns the CPU models of a Proxmox cluster, as reported by a host. It
// includes the custom ones that the credential may see, with the prefix custom-.
func (c *Client) CPUModels(ctx context.Context, host topology.HostName) ([]string, error) {
	var models []struct {
		Name string `json:"name"`
	}
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/capabilities/qemu/cpu", host), &models); err != nil {
		return nil, fmt.Errorf("reading the CPU models of region %s: %w", c.cfg.Region, err)
	}
	names := make([]string, len(models))
	for i, model := range models {
		names[i] = model.Name
	}
	return names, nil
}
