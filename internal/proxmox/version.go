package proxmox

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// OldestVersion is the oldest major version of Proxmox VE that numaform works with.
const OldestVersion = 8

// TooOldError says that a Proxmox VE is older than numaform knows.
type TooOldError struct {
	Region  topology.RegionName
	Version string
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("region %s runs Proxmox VE %s: numaform needs %d or newer: upgrade its hosts (https://pve.proxmox.com/wiki/Category:Upgrade)",
		e.Region, e.Version, OldestVersion)
}

// Version returns the version of the Proxmox VE that answers. It returns it together
// with a *TooOldError if numaform does not work with it.
func (c *Client) Version(ctx context.Context) (string, error) {
	var answer struct {
		Version string `json:"version"`
	}
	if err := c.get(ctx, "/version", &answer); err != nil {
		return "", err
	}
	return answer.Version, c.checkVersion(answer.Version)
}

// checkVersion refuses a version that is too old. One that is empty or cannot be read
// is not refused: reports may lack it.
func (c *Client) checkVersion(text string) error {
	major, _, _ := strings.Cut(text, ".")
	if number, err := strconv.Atoi(major); err == nil && number < OldestVersion {
		return &TooOldError{Region: c.cfg.Region, Version: text}
	}
	return nil
}
