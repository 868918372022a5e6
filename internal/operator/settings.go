package operator

import (
	"fmt"
	"os"
	"slices"

	"github.com/numaform/numaform/topology"
)

// defaultReservedMiB is the memory reserved for a host itself if the settings file does
// not set it, the same as in karpenter-provider-proxmox.
const defaultReservedMiB = 1024

// applySettings applies the settings file to a snapshot. It returns an error for settings
// that contradict their host, and for unknown regions. A host that its cluster does not
// have is added to the snapshot, with that as its Problem.
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

// addAbsent adds the hosts that are in the settings but not in their region. It skips
// regions that were not read, which may have them.
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
