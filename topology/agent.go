package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The line that begins what the host agent says of itself in a host's notes, and the
// version of its format.
const (
	agentBegin  = "<!-- numaform-agent"
	agentFormat = 1
)

// Bounds of what is read there: whoever may write notes may write this.
const (
	maxAgentGuests   = 10000
	maxAgentClusters = 256
	maxAgentText     = 1024
	maxVMID          = 999999999
	// MaxPCINodes is of how many devices an agent tells the NUMA node.
	MaxPCINodes = 256
)

// Agent is what numaform-agent said of itself when it last published: it alone knows
// whose VMs it pins, and which it does.
type Agent struct {
	Version string `json:"version"`
	// At is when it said so, by the host's clock.
	At time.Time `json:"at"`
	// Isolation is off, report or enforce.
	Isolation string `json:"isolation"`
	// Clusters are the ids of the clusters whose VMs it pins.
	Clusters         []string `json:"clusters,omitempty"`
	MaxPinnedPercent int      `json:"max_pinned_percent"`
	// ReservedCPUs are those that it pins nobody to.
	ReservedCPUs CPUSet `json:"reserved_cpus,omitzero"`
	// Problem says what went wrong when it last looked at its host, or is empty.
	Problem string `json:"problem,omitempty"`
	// Pinned are the VMs that have pins now, by VMID.
	Pinned map[int]Pins `json:"pinned,omitempty"`
	// Refused are those whose declaration does not take effect, by VMID, and why: the
	// words of the agent's documentation, such as "overlap". They may have other pins.
	Refused map[int]string `json:"refused,omitempty"`
	// PCINodes are the NUMA nodes of the host's devices that resource mappings name, by
	// address.
	PCINodes map[string]int `json:"pci_nodes,omitempty"`
}

// Pins are the host CPUs of vCPU 0, 1, 2, … Their text form is "4,36,5,37".
type Pins []int

// String returns the CPUs in the order of the vCPUs.
func (p Pins) String() string {
	parts := make([]string, len(p))
	for i, cpu := range p {
		parts[i] = strconv.Itoa(cpu)
	}
	return strings.Join(parts, ",")
}

// MarshalText returns the CPUs in the order of the vCPUs.
func (p Pins) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses CPUs in the order of the vCPUs, each once.
func (p *Pins) UnmarshalText(text []byte) error {
	pins := Pins{}
	seen := map[int]bool{}
	for part := range strings.SplitSeq(string(text), ",") {
		cpu, err := strconv.Atoi(part)
		if err != nil || strconv.Itoa(cpu) != part || cpu < 0 || cpu > MaxCPU || seen[cpu] {
			return fmt.Errorf("parsing pins %s: want CPUs, each once, such as 4,36,5,37", quote(string(text)))
		}
		seen[cpu] = true
		pins = append(pins, cpu)
	}
	*p = pins
	return nil
}

// agentFile is what stands in the notes.
type agentFile struct {
	Format int `json:"format"`
	Agent
}

// ParseAgent finds what the agent says in a host's notes, and reads it as strictly as
// ParsePublished. It reports false if nothing is there.
func ParseAgent(notes string) (Agent, bool, error) {
	text, found, err := readBlock(notes, agentBegin)
	if err != nil || !found {
		return Agent{}, found, err
	}
	var file agentFile
	if _, err := strictJSON([]byte(text), &file); err != nil {
		return Agent{}, true, fmt.Errorf("reading what stands behind the line %q: %w", agentBegin, err)
	}
	if file.Format != agentFormat {
		return Agent{}, true, fmt.Errorf("reading what stands behind the line %q: format is %d: this numaform reads format %d; "+
			"let numaform and numaform-agent be of the same version", agentBegin, file.Format, agentFormat)
	}
	file.At = file.At.UTC()
	if err := file.check(); err != nil {
		return Agent{}, true, fmt.Errorf("reading what stands behind the line %q: %w", agentBegin, err)
	}
	return file.Agent, true, nil
}

// PublishIn returns notes in which this stands in place of what an agent said there
// before, or at their end. All else stays as it is.
func (a Agent) PublishIn(notes string) (string, error) {
	a.At = a.At.UTC()
	if err := a.check(); err != nil {
		return "", fmt.Errorf("publishing the agent's state: %w", err)
	}
	var block bytes.Buffer
	block.WriteString(agentBegin + "\n")
	// The encoder writes < and > as escapes, so no text can end the comment.
	if err := json.NewEncoder(&block).Encode(agentFile{Format: agentFormat, Agent: a}); err != nil {
		return "", fmt.Errorf("publishing the agent's state: %w", err)
	}
	block.WriteString(publishedEnd + "\n")
	text, err := putBlock(notes, agentBegin, block.Bytes())
	if err != nil {
		return "", fmt.Errorf("publishing the agent's state: %w", err)
	}
	return text, nil
}

var (
	agentReason  = regexp.MustCompile(`^[a-z][a-z_]{0,31}$`)
	agentCluster = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$`)
)

// check says what is wrong with what an agent says. Its words are shown to people, so
// they may hold nothing that a terminal obeys.
func (a *Agent) check() error {
	switch {
	case !printable(a.Version, 1, 64):
		return fmt.Errorf("version is %s: want such as 1.2.3", quote(a.Version))
	case a.At.Year() < 2000 || a.At.Year() > 9999:
		return fmt.Errorf("at is %s: want when the agent looked", quote(a.At.Format(time.RFC3339)))
	case !slices.Contains([]string{"off", "report", "enforce"}, a.Isolation):
		return fmt.Errorf("isolation is %s: want off, report or enforce", quote(a.Isolation))
	case a.MaxPinnedPercent < 1 || a.MaxPinnedPercent > 100:
		return fmt.Errorf("max_pinned_percent is %d: want 1 to 100", a.MaxPinnedPercent)
	case !printable(a.Problem, 0, maxAgentText):
		return fmt.Errorf("problem is %s: want one line of at most %d bytes", quote(a.Problem), maxAgentText)
	case len(a.Clusters) > maxAgentClusters:
		return fmt.Errorf("clusters are %d: want at most %d", len(a.Clusters), maxAgentClusters)
	case len(a.Pinned)+len(a.Refused) > maxAgentGuests:
		return fmt.Errorf("pinned and refused name %d guests: want at most %d", len(a.Pinned)+len(a.Refused), maxAgentGuests)
	}
	if i := slices.IndexFunc(a.Clusters, func(id string) bool { return !agentCluster.MatchString(id) }); i >= 0 {
		return fmt.Errorf("clusters names %s: want a clusterID", quote(a.Clusters[i]))
	}
	return errors.Join(a.checkPCINodes(), a.checkGuests())
}

func (a *Agent) checkGuests() error {
	for _, vmid := range slices.Sorted(maps.Keys(a.Pinned)) {
		if vmid < 1 || vmid > maxVMID || len(a.Pinned[vmid]) == 0 {
			return fmt.Errorf("pinned names guest %d with %d CPUs: want a VMID and at least one CPU", vmid, len(a.Pinned[vmid]))
		}
	}
	for _, vmid := range slices.Sorted(maps.Keys(a.Refused)) {
		if vmid < 1 || vmid > maxVMID || !agentReason.MatchString(a.Refused[vmid]) {
			return fmt.Errorf("refused names guest %d for %s: want a VMID and one word", vmid, quote(a.Refused[vmid]))
		}
	}
	return nil
}

// printable reports whether a text has from least to most bytes, and a terminal shows it
// as it is, in one line.
func printable(text string, least, most int) bool {
	return len(text) >= least && len(text) <= most && !strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) })
}

// checkAgent says what is wrong with what is known of a host's agent.
func (h *Host) checkAgent() error {
	switch {
	case h.Agent == nil:
		return nil
	case h.ReadAt.IsZero():
		return errors.New("agent is there, but not read_at, when it was read: record again with `numaform topology -o json`")
	default:
		return h.Agent.check()
	}
}
