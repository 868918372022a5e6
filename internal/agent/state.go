package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/numaform/numaform/internal/agent/cgroup"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/agent/cpufreq"
	"github.com/numaform/numaform/internal/agent/irq"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

// stateFormat is the format of the state file.
const stateFormat = 1

// State records the changes that the agent made on the host, and its findings. It is saved in
// a file below /run, so it survives a restart of the agent, but not of the host.
type State struct {
	Format  int    `json:"format"`
	Version string `json:"version"`
	// Agent is the process that wrote the state.
	Agent     qemu.Run        `json:"agent"`
	Isolation Isolation       `json:"isolation"`
	Online    topology.CPUSet `json:"online,omitzero"`
	Pinned    topology.CPUSet `json:"pinned,omitzero"`
	// Shared are the CPUs of guests without pins: neither pinned nor siblings of pinned
	// CPUs.
	Shared topology.CPUSet `json:"shared,omitzero"`
	// Guests are the guests that have or declare pins.
	Guests    []Guest       `json:"guests"`
	Confined  []Confinement `json:"confined"`
	Intruders []Intruder    `json:"intruders"`
	// Governors are the frequency policies that the agent set. GovernorNote is the reason
	// why it cannot set any, or empty.
	Governors    []Governed  `json:"governors,omitempty"`
	GovernorNote string      `json:"governor_note,omitempty"`
	Interrupts   []Interrupt `json:"interrupts,omitempty"`
	// Clusters, MaxPinnedPercent and Reserved are the rules in effect.
	Clusters         []string        `json:"clusters,omitempty"`
	MaxPinnedPercent int             `json:"max_pinned_percent,omitempty"`
	Reserved         topology.CPUSet `json:"reserved,omitzero"`
	// Problem is the error of the last round, except for errors of single guests.
	Problem string `json:"problem,omitempty"`
	// Looked is the time of the agent's last recorded round, in seconds since boot. The
	// last round can be up to 15 seconds newer.
	Looked float64 `json:"looked,omitempty"`
}

// Guest is a VM that has or declares pins.
type Guest struct {
	qemu.Run
	Pins *claim.Pins `json:"pins,omitempty"`
	// Refused explains why Pins differ from the declaration; nil if they do not.
	Refused *claim.Refusal `json:"refused,omitempty"`
	// Starting is true while a new VM without pins lacks threads or a readable
	// configuration, for at most five seconds.
	Starting bool `json:"starting,omitempty"`
	// PutBack is the number of rounds in which the agent moved vCPUs of the VM back after
	// another program had moved them.
	PutBack int `json:"put_back,omitempty"`
}

// Confinement is a control group that the agent changed.
type Confinement struct {
	Group string `json:"group"`
	// Was is the group's earlier cpuset.cpus, as the kernel prints it.
	Was string          `json:"was"`
	Now topology.CPUSet `json:"now"`
}

// Intruder is a guest without pins that may run on CPUs to which other guests are pinned,
// or on their siblings.
type Intruder struct {
	VMID int             `json:"vmid"`
	CPUs topology.CPUSet `json:"cpus"`
	// Text is the reason why the guest could not be confined; empty unless the isolation is
	// IsolationEnforce.
	Text string `json:"text,omitempty"`
}

// guest returns the entry of a VM, or nil.
func (s *State) guest(run qemu.Run) *Guest {
	return find(s.Guests, func(g Guest) bool { return g.Run == run })
}

func (s *State) confinement(group string) *Confinement {
	return find(s.Confined, func(c Confinement) bool { return c.Group == group })
}

// find returns a pointer to the first matching element, or nil.
func find[T any](list []T, is func(T) bool) *T {
	i := slices.IndexFunc(list, is)
	if i < 0 {
		return nil
	}
	return &list[i]
}

// StateFile returns the name of the state file in a directory.
func StateFile(dir string) string { return filepath.Join(dir, "state.json") }

// ReadState reads the state file. It validates the file because the agent writes to the
// groups, policies and interrupts in it. If there is none, it returns the zero State.
func ReadState(dir string) (State, error) {
	data, err := os.ReadFile(StateFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("reading the state: %w", err)
	}
	var state State
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err = decoder.Decode(&state); err == nil {
		err = state.check()
	}
	if err == nil && decoder.Decode(&struct{}{}) != io.EOF {
		err = errors.New("unexpected data after the JSON value")
	}
	if err != nil {
		return State{}, fmt.Errorf("reading %s: %w", StateFile(dir), err)
	}
	return state, nil
}

// check validates the names of everything that the agent writes to.
func (s *State) check() error {
	if s.Format != stateFormat {
		return fmt.Errorf("format is %d: must be %d; restart numaform-agent", s.Format, stateFormat)
	}
	for _, c := range s.Confined {
		if !cgroup.Known(c.Group) {
			return fmt.Errorf("control group %q: must be %s or a group such as %s", c.Group, cgroup.Containers, cgroup.VM(100))
		}
		if _, err := topology.ParseCPUSet(c.Was); err != nil {
			return fmt.Errorf("control group %s: %w", c.Group, err)
		}
	}
	for i := range s.Governors {
		g := &s.Governors[i]
		if g.Policy < 0 {
			return fmt.Errorf("frequency policy %d: must not be negative", g.Policy)
		}
		if err := errors.Join(cpufreq.CheckName(g.Was), cpufreq.CheckName(g.Now)); err != nil {
			return fmt.Errorf("frequency policy %d: %w", g.Policy, err)
		}
	}
	for _, i := range s.Interrupts {
		if i.IRQ < 0 || !irq.KnownDevice(i.Device) {
			return fmt.Errorf("interrupt %d of device %q: must be a non-negative number and the address of a PCI device, such as 0000:01:00.0", i.IRQ, i.Device)
		}
	}
	return nil
}
