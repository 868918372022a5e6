package operator

import (
	"fmt"
	"os"
	"slices"

	"github.com/numaform/numaform/topology"
)

// defaultReservedMiB is kept for a host itself where the settings file says
// nothing, as karpenter-provider-proxmox does.
const defaultReservedMiB = 1024

// applySettings lays the settings file over what was read. What it says of a host
// and the host contradicts is an error, and so is a region that is no cluster's; a
// host that its cluster does not have is added to the snapshot, with that as its
// Problem.
func (c *Config) applySettings(snapshot *topology.Snapshot) error {
	for i := range snapshot.Hosts {
		snapshot.Hosts[i].ReservedMemoryMiB = defaultReservedMiB
	}
	if c.TopologyFile == "" {
		return nil
	}
	settings, err := c.settings()
	if err != nil {
		return err
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if !host.Online {
			continue
		}
		if err := settings.Apply(host); err != nil {
			return fmt.Errorf("applying topology_file %s: %w", c.TopologyFile, err)
		}
	}
	c.addAbsent(snapshot, settings)
	return nil
}

// settings reads the settings file.
func (c *Config) settings() (topology.Settings, error) {
	text, err := os.ReadFile(c.TopologyFile)
	if err != nil {
		return topology.Settings{}, fmt.Errorf("reading topology_file: %w: correct its path, or leave the key out", err)
	}
	settings, err := topology.ParseSettings(text)
	if err != nil {
		return topology.Settings{}, fmt.Errorf("reading topology_file %s: %w", c.TopologyFile, err)
	}
	var regions []topology.RegionName
	for i := range c.Clusters {
		regions = append(regions, c.Clusters[i].Region)
	}
	if err := settings.CheckRegions(regions...); err != nil {
		return topology.Settings{}, fmt.Errorf("reading topology_file %s: %w: correct it there, or add the cluster to numaform.yaml", c.TopologyFile, err)
	}
	return settings, nil
}

// addAbsent adds the hosts that the settings name and their region does not have. A
// region that was not read may have them.
func (c *Config) addAbsent(snapshot *topology.Snapshot, settings topology.Settings) {
	members := map[topology.RegionName][]topology.HostName{}
	for i := range snapshot.Hosts {
		members[snapshot.Hosts[i].Region] = append(members[snapshot.Hosts[i].Region], snapshot.Hosts[i].Name)
	}
	for _, id := range settings.Named() {
		if len(members[id.Region]) == 0 || slices.Contains(members[id.Region], id.Host) {
			continue
		}
		snapshot.Hosts = append(snapshot.Hosts, topology.Host{Region: id.Region, Name: id.Host, Problem: fmt.Sprintf(
			"is not in the cluster, whose hosts are %v: correct its name in %s", members[id.Region], c.TopologyFile,
		)})
	}
	slices.SortFunc(snapshot.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
}
