package qemu

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/numaform/numaform/topology"
)

// Config is the relevant part of a running guest's configuration.
type Config struct {
	Description string
	// Affinity is the set that root configured for the guest, or empty: the affinity of a
	// VM, or the cpuset.cpus in a container's file.
	Affinity topology.CPUSet
}

// config reads a guest's file in /etc/pve.
func (r Reader) config(kind string, vmid int) (Config, error) {
	name := fmt.Sprintf("etc/pve/%s/%d.conf", kind, vmid)
	data, err := r.read(name)
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration: %w", err)
	}
	config, err := ParseConfig(string(data))
	if err != nil {
		return Config{}, fmt.Errorf("reading /%s: %w", name, err)
	}
	return config, nil
}

// ParseConfig reads the first section of a guest's file: pending changes and snapshots
// follow it. The description is in comment lines, URL-encoded.
func ParseConfig(text string) (Config, error) {
	var config Config
	var description strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "[") {
			break
		}
		if encoded, ok := strings.CutPrefix(line, "#"); ok {
			description.WriteString(decode(encoded) + "\n")
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		var err error
		switch key {
		case "description":
			description.WriteString(decode(strings.TrimSpace(value)) + "\n")
		case "affinity", "lxc.cgroup2.cpuset.cpus", "lxc.cgroup.cpuset.cpus":
			config.Affinity, err = topology.ParseCPUSet(value)
		}
		if err != nil {
			return Config{}, fmt.Errorf("reading %s: %w", key, err)
		}
	}
	config.Description = description.String()
	return config, nil
}

// decode reverts Proxmox' encoding; text that is not encoded is unchanged.
func decode(text string) string {
	if decoded, err := url.PathUnescape(text); err == nil {
		return decoded
	}
	return text
}
