package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// The file of Proxmox' resource mappings of PCI devices, and Linux's directory of devices.
const (
	mappingFile = "etc/pve/mapping/pci.cfg"
	pciDir      = "sys/bus/pci/devices"
)

// pciNodes returns the NUMA nodes of the host's devices in resource mappings, by address.
// Devices whose node Linux does not report are left out.
func (p Publisher) pciNodes() map[string]int {
	data, err := os.ReadFile(filepath.Join(p.Root, mappingFile))
	if err != nil {
		return nil // the host has no mappings
	}
	nodes := map[string]int{}
	for line := range strings.Lines(string(data)) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "map ")
		host, device, err := topology.ParsePCIMap("mapped", text)
		if !ok || err != nil || string(host) != p.Host {
			continue
		}
		for _, address := range device.Functions() {
			if node, told := p.pciNode(address); told && len(nodes) < topology.MaxPCINodes {
				nodes[address] = node
			}
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return nodes
}

// pciNode reads the NUMA node of a device, or of its first function.
func (p Publisher) pciNode(address string) (node int, told bool) {
	name := address
	if !strings.Contains(name, ".") {
		name += ".0"
	}
	data, err := os.ReadFile(filepath.Join(p.Root, pciDir, name, "numa_node"))
	if err != nil {
		return 0, false
	}
	node, err = strconv.Atoi(strings.TrimSpace(string(data)))
	return node, err == nil && node >= 0 && node <= topology.MaxCPU
}
