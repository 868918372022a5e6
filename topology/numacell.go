package topology

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParseNUMA parses the value of the numaN option of a VM. Keys may have any order; only
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
			return NUMACell{}, fmt.Errorf("parsing numa %s: %s: must have the form key=value", quote(text), quote(part))
		}
		if seen[key] {
			return NUMACell{}, fmt.Errorf("parsing numa %s: %s is a duplicate key: remove one", quote(text), quote(key))
		}
		seen[key] = true

		var err error
		switch key {
		case "cpus":
			cell.GuestCPUs, err = parseList(value, ";")
		case "hostnodes":
			cell.HostNodes, err = parseList(value, ";")
		case "memory":
			cell.MemoryMiB, err = strconv.ParseInt(value, 10, 64)
			if err != nil || cell.MemoryMiB <= 0 {
				err = fmt.Errorf("%s: must be a positive number of MiB", quote(value))
			}
		case "policy":
			cell.Policy = NUMAPolicy(value)
			if !slices.Contains([]NUMAPolicy{NUMABind, NUMAPreferred, NUMAInterleave}, cell.Policy) {
				err = fmt.Errorf("%s: must be bind, preferred or interleave", quote(value))
			}
		default:
			err = errors.New("unknown key: must be cpus, hostnodes, memory or policy")
		}
		if err != nil {
			return NUMACell{}, fmt.Errorf("parsing numa %s: %s: %w", quote(text), quote(key), err)
		}
	}
	if cell.GuestCPUs.IsEmpty() {
		return NUMACell{}, fmt.Errorf("parsing numa %s: cpus is missing: add cpus=0-3 or similar", quote(text))
	}
	return cell, nil
}
