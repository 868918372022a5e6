package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseNUMA parses the value of Proxmox' numaN option. Keys may come in any order; only
// cpus is required.
func ParseNUMA(text string) (NUMACell, error) {
	var cell NUMACell
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		if !ok || value == "" {
			return NUMACell{}, fmt.Errorf("parsing numa %s: %s: want key=value", quote(text), quote(part))
		}
		if seen[key] {
			return NUMACell{}, fmt.Errorf("parsing numa %s: %s stands twice", quote(text), quote(key))
		}
		seen[key] = true
		if err := cell.setKey(key, value); err != nil {
			return NUMACell{}, fmt.Errorf("parsing numa %s: %s: %w", quote(text), quote(key), err)
		}
	}
	if cell.GuestCPUs.IsEmpty() {
		return NUMACell{}, fmt.Errorf("parsing numa %s: cpus is missing: want cpus=0-3,…", quote(text))
	}
	return cell, nil
}

func (c *NUMACell) setKey(key, value string) (err error) {
	switch key {
	case "cpus":
		c.GuestCPUs, err = parseList(value, ";")
	case "hostnodes":
		c.HostNodes, err = parseList(value, ";")
	case "memory":
		c.MemoryMiB, err = strconv.ParseInt(value, 10, 64)
		if err != nil || c.MemoryMiB <= 0 {
			return fmt.Errorf("%s: want a positive number of MiB", quote(value))
		}
	case "policy":
		c.Policy = NUMAPolicy(value)
		return c.Policy.check()
	default:
		return fmt.Errorf("key is unknown: want cpus, hostnodes, memory or policy")
	}
	return err
}

func (p NUMAPolicy) check() error {
	switch p {
	case NUMABind, NUMAPreferred, NUMAInterleave:
		return nil
	default:
		return fmt.Errorf("%s: want bind, preferred or interleave", quote(string(p)))
	}
}
