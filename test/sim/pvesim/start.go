package pvesim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// errQEMU is the error of a start that passed Proxmox's own checks but whose process
// failed. The reason is in the task's log.
var errQEMU = errors.New("start failed: QEMU exited with code 1")

// startable runs the checks that Proxmox runs only when a guest is started, in the same
// order and with the same messages, and reserves the guest's PCI devices. say receives the
// output of QEMU or taskset.
func (c *cluster) startable(g *guest, say func(string)) error {
	conf := g.conf
	if err := c.takeDevices(g); err != nil {
		return err
	}
	if threads := g.host.machine.OnlineCPUs().Size(); vcpus(conf) > threads {
		return fmt.Errorf("MAX %d vcpus allowed per VM on this node", threads)
	}
	if err := checkMemory(g); err != nil {
		return err
	}
	if err := c.checkVolumes(g); err != nil {
		return err
	}
	if text := affinityProblem(g); text != "" {
		say(text)
		return errQEMU
	}
	if text := qemuProblem(conf); text != "" {
		say("kvm: " + text)
		return errQEMU
	}
	return nil
}

// numaNode is a parsed numaN.
type numaNode struct {
	index     int
	cpus      CPUSet
	memory    int64
	hostNodes string // "", or Linux's list format
	policy    string
}

// numaNodes parses numa0 to numa7.
func numaNodes(conf map[string]string) []numaNode {
	var nodes []numaNode
	for i := range 8 {
		text, ok := conf["numa"+strconv.Itoa(i)]
		if !ok {
			continue
		}
		n := numaNode{index: i}
		for part := range strings.SplitSeq(text, ",") {
			key, val, _ := strings.Cut(part, "=")
			list := strings.ReplaceAll(val, ";", ",")
			switch key {
			case "cpus":
				n.cpus, _ = ParseCPUSet(list)
			case "memory":
				n.memory, _ = strconv.ParseInt(val, 10, 64)
			case "hostnodes":
				n.hostNodes = list
			case "policy":
				n.policy = val
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// checkMemory checks a guest's memory and NUMA options, as the function config of
// PVE::QemuServer::Memory does.
func checkMemory(g *guest) error {
	conf := g.conf
	nodes := numaNodes(conf)
	huge := conf["hugepages"] != ""
	if holds(splitList(conf["hotplug"]), "memory") {
		if conf["numa"] != "1" {
			return errors.New("NUMA needs to be enabled for memory hotplug")
		}
		if len(nodes) > 0 {
			return errors.New("cannot enable memory hotplugging with custom NUMA topology")
		}
	}
	if huge && conf["numa"] != "1" {
		return errors.New("numa needs to be enabled to use hugepages")
	}
	if conf["numa"] != "1" {
		return nil
	}
	total := int64(0)
	for _, n := range nodes {
		if err := n.check(&g.host.machine, huge); err != nil {
			return err
		}
		total += n.memory
	}
	if len(nodes) > 0 && total != memoryMiB(conf) {
		return errors.New("total memory for NUMA nodes must be equal to vm static memory")
	}
	return checkHugePages(g, nodes, huge)
}

// check checks a single numaN for checkMemory.
func (n numaNode) check(machine *Machine, huge bool) error {
	if n.memory == 0 {
		return fmt.Errorf("missing NUMA node%d memory value", n.index)
	}
	if n.hostNodes == "" {
		if huge {
			return errors.New("numa hostnodes need to be defined to use hugepages")
		}
		return nil
	}
	wanted, _ := ParseCPUSet(n.hostNodes)
	for _, id := range wanted.List() { // Proxmox only checks that the node's directory exists: Memory.pm:151
		if !hasNUMANode(machine, id) {
			return fmt.Errorf("host NUMA node%d doesn't exist", id)
		}
	}
	if n.policy == "" {
		return fmt.Errorf("you need to define a policy for hostnode %s", n.hostNodes)
	}
	return nil
}

// checkHugePages checks that huge pages fit the NUMA options, as hugepages_topology of
// PVE::QemuServer::Memory does: its pattern for a host node is one digit (qemu-server
// 9.2.6, src/PVE/QemuServer/Memory.pm:629). Whether Linux has enough free huge pages is not
// simulated.
func checkHugePages(g *guest, nodes []numaNode, huge bool) error {
	if !huge {
		return nil
	}
	size := numberOf(g.conf, "hugepages", 2)
	for _, n := range nodes {
		if len(n.hostNodes) != 1 {
			return errors.New("more than 1 hostnode value in numa node is not supported when hugepages are enabled")
		}
		if g.conf["hugepages"] != "any" && n.memory%int64(size) != 0 {
			return fmt.Errorf("Memory size %d is not a multiple of the requested hugepages size %d", n.memory, size) //nolint:staticcheck // Proxmox's text
		}
	}
	return nil
}

func hasNUMANode(machine *Machine, id int) bool {
	for _, n := range machine.NUMANodes {
		if n.ID == id {
			return true
		}
	}
	return false
}

// checkVolumes checks that the volumes of all drives exist.
func (c *cluster) checkVolumes(g *guest) error {
	for _, key := range sortedKeys(g.conf) {
		if !driveName.MatchString(key) {
			continue
		}
		file, _, _ := strings.Cut(strings.TrimPrefix(g.conf[key], "file="), ",")
		if !volumeText.MatchString(file) {
			continue
		}
		name, _, _ := strings.Cut(file, ":")
		if c.storage(g.host, name) == nil {
			return fmt.Errorf("storage '%s' does not exist", name)
		}
		if _, v := c.findVolume(g.host, file); v == nil {
			return fmt.Errorf("volume '%s' does not exist", file)
		}
	}
	return nil
}

// affinityProblem returns the message of taskset if none of the CPUs of the affinity is
// online, and otherwise "".
func affinityProblem(g *guest) string {
	text, ok := g.conf["affinity"]
	if !ok {
		return ""
	}
	wanted, err := ParseCPUSet(text)
	if err != nil || wanted.Intersection(g.host.machine.OnlineCPUs()).IsEmpty() {
		return "taskset: failed to set pid 0's affinity: Invalid argument"
	}
	return ""
}

// qemuProblem returns QEMU's own message about an invalid NUMA topology, or "".
func qemuProblem(conf map[string]string) string {
	if conf["numa"] != "1" {
		return ""
	}
	given := map[int]int{}
	for at, n := range numaNodes(conf) {
		if n.index != at {
			return fmt.Sprintf("numa: Node ID missing: %d", at)
		}
		for _, cpu := range n.cpus.List() {
			if cpu >= vcpus(conf) {
				return fmt.Sprintf("CPU index (%d) should be smaller than maxcpus (%d)", cpu, vcpus(conf))
			}
			if other, twice := given[cpu]; twice {
				return fmt.Sprintf("CPU %d is already assigned to node-id: %d", cpu, other)
			}
			given[cpu] = n.index
		}
	}
	return ""
}
