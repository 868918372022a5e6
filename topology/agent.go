package topology

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The line that begins the host agent's section in a host's notes, and its format
// version.
const (
	agentBegin  = "<!-- numaform-agent"
	agentFormat = 1
)

// The limits of the data in the notes, which are untrusted: anyone with permission to edit
// notes can write them.
const (
	maxAgentGuests   = 10000
	maxAgentClusters = 256
	maxVMID          = 999999999
	// MaxAgentProblem is the maximum size of the error that an agent reports, in bytes.
	MaxAgentProblem = 1024
	// MaxPCINodes is the maximum number of devices whose NUMA node an agent reports.
	MaxPCINodes = 256
)

// Agent is the last state that numaform-agent published. Only the agent can report which
// clusters' VMs it pins and which VMs have pins.
type Agent struct {
	Version string `json:"version"`
	// At is the time of publication, by the host's clock.
	At time.Time `json:"at"`
	// Isolation is "off", "report" or "enforce".
	Isolation string `json:"isolation"`
	// Clusters are the IDs of the clusters whose VMs the agent pins.
	Clusters         []string `json:"clusters,omitempty"`
	MaxPinnedPercent int      `json:"max_pinned_percent"`
	// ReservedCPUs are the CPUs to which the agent never pins a VM.
	ReservedCPUs CPUSet `json:"reserved_cpus,omitzero"`
	// Problem is the error of the agent's last round, or empty.
	Problem string `json:"problem,omitempty"`
	// Pinned are the VMs that currently have pins, by VMID.
	Pinned map[int]Pins `json:"pinned,omitempty"`
	// Refused maps the VMID of each VM whose declared pins the agent does not apply to the
	// reason, a keyword from the agent's documentation such as "overlap". Such a VM may have
	// older pins.
	Refused map[int]string `json:"refused,omitempty"`
	// PCINodes are the NUMA nodes of the host's devices that resource mappings name, by
	// PCI address.
	PCINodes map[string]int `json:"pci_nodes,omitempty"`
}

// Pins lists the host CPUs of vCPU 0, 1, 2, …. Its text form is "4,36,5,37".
type Pins []int

// String returns the CPUs in the order of the vCPUs.
func (p Pins) String() string {
	parts := make([]string, len(p))
	for i, cpu := range p {
		parts[i] = strconv.Itoa(cpu)
	}
	return strings.Join(parts, ",")
}

// MarshalText returns the same text as String.
func (p Pins) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses a comma-separated list of CPUs in vCPU order, without duplicates.
func (p *Pins) UnmarshalText(text []byte) error {
	pins := Pins{}
	seen := map[int]bool{}
	for part := range strings.SplitSeq(string(text), ",") {
		cpu, err := strconv.Atoi(part)
		if err != nil || strconv.Itoa(cpu) != part || cpu < 0 || cpu > MaxCPU || seen[cpu] {
			return fmt.Errorf("parsing pins %s: must list distinct CPUs from 0 to %d, such as 4,36,5,37", quote(string(text)), MaxCPU)
		}
		seen[cpu] = true
		pins = append(pins, cpu)
	}
	*p = pins
	return nil
}

// agentFile is the JSON document in the notes.
type agentFile struct {
	Format int `json:"format"`
	Agent
}

// ParseAgent parses the agent's section in a host's notes, as strictly as ParsePublished.
// It returns false if the notes have no such section.
func ParseAgent(notes string) (Agent, bool, error) {
	text, found, err := readBlock(notes, agentBegin)
	if err != nil || !found {
		return Agent{}, found, err
	}
	var file agentFile
	err = strictJSON([]byte(text), &file)
	if err == nil && file.Format != agentFormat {
		err = fmt.Errorf("it has format %d, but this numaform reads only format %d: install numaform and numaform-agent of the same version",
			file.Format, agentFormat)
	}
	file.At = file.At.UTC()
	if err == nil {
		err = file.check()
	}
	if err != nil {
		return Agent{}, true, fmt.Errorf("reading the text after the line %q: %w", agentBegin, err)
	}
	return file.Agent, true, nil
}

// PublishIn returns notes with the agent's section replaced, or appended if there is
// none. It leaves the rest unchanged.
func (a Agent) PublishIn(notes string) (string, error) {
	a.At = a.At.UTC()
	err := a.check()
	text := ""
	if err == nil {
		text, err = putBlock(notes, agentBegin, agentFile{Format: agentFormat, Agent: a})
	}
	if err != nil {
		return "", fmt.Errorf("publishing the agent's state: %w", err)
	}
	return text, nil
}

var (
	agentReason  = regexp.MustCompile(`^[a-z][a-z_]{0,31}$`)
	agentCluster = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$`)
)

// check returns an error if the agent's data is invalid. Terminals display its text, so it
// must not contain control characters.
func (a *Agent) check() error {
	switch {
	case !printable(a.Version, 1, 64):
		return fmt.Errorf("version is %s: must be a version such as 1.2.3", quote(a.Version))
	case a.At.Year() < 2000 || a.At.Year() > 9999:
		return fmt.Errorf("at is %s: must be the time of publication, from the year 2000 to 9999", quote(a.At.Format(time.RFC3339)))
	case !slices.Contains([]string{"off", "report", "enforce"}, a.Isolation):
		return fmt.Errorf("isolation is %s: must be off, report or enforce", quote(a.Isolation))
	case a.MaxPinnedPercent < 1 || a.MaxPinnedPercent > 100:
		return fmt.Errorf("max_pinned_percent is %d: must be from 1 to 100", a.MaxPinnedPercent)
	case !printable(a.Problem, 0, MaxAgentProblem):
		return fmt.Errorf("problem is %s: must be one line of at most %d bytes", quote(a.Problem), MaxAgentProblem)
	case len(a.Clusters) > maxAgentClusters:
		return fmt.Errorf("clusters has %d entries: must have at most %d", len(a.Clusters), maxAgentClusters)
	case len(a.Pinned)+len(a.Refused) > maxAgentGuests:
		return fmt.Errorf("pinned and refused name %d guests: must name at most %d", len(a.Pinned)+len(a.Refused), maxAgentGuests)
	}
	if i := slices.IndexFunc(a.Clusters, func(id string) bool { return !agentCluster.MatchString(id) }); i >= 0 {
		return fmt.Errorf("clusters names %s: must name cluster IDs, at most 32 lowercase letters, digits and hyphens each", quote(a.Clusters[i]))
	}
	if len(a.PCINodes) > MaxPCINodes {
		return fmt.Errorf("pci_nodes names %d devices: must name at most %d", len(a.PCINodes), MaxPCINodes)
	}
	for _, address := range slices.Sorted(maps.Keys(a.PCINodes)) {
		if node := a.PCINodes[address]; !addressPattern.MatchString(address) || node < 0 || node > MaxCPU {
			return fmt.Errorf("pci_nodes maps %s to NUMA node %d: must map an address such as 0000:01:00.0 to a NUMA node", quote(address), node)
		}
	}
	return a.checkGuests()
}

// checkGuests returns an error if a VMID, its pins or its reason is invalid.
func (a *Agent) checkGuests() error {
	for _, vmid := range slices.Sorted(maps.Keys(a.Pinned)) {
		if vmid < 1 || vmid > maxVMID || len(a.Pinned[vmid]) == 0 {
			return fmt.Errorf("pinned maps guest %d to %d CPUs: must map a VMID to at least one CPU", vmid, len(a.Pinned[vmid]))
		}
	}
	for _, vmid := range slices.Sorted(maps.Keys(a.Refused)) {
		if vmid < 1 || vmid > maxVMID || !agentReason.MatchString(a.Refused[vmid]) {
			return fmt.Errorf("refused maps guest %d to %s: must map a VMID to a reason such as overlap", vmid, quote(a.Refused[vmid]))
		}
	}
	return nil
}

// printable reports whether text has between least and most bytes and is a single line
// that a terminal displays unchanged.
func printable(text string, least, most int) bool {
	return len(text) >= least && len(text) <= most && !strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) })
}
