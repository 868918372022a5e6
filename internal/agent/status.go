package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

// Status is the state with what it says of the agent now.
type Status struct {
	State
	// Running is false if the process that wrote the state is gone.
	Running bool `json:"running"`
	// Silent is for how many seconds it has not looked at the host, if that is too many.
	Silent int `json:"silent,omitempty"`
	// Published is when numaform was last told in the host's notes, or zero.
	Published time.Time `json:"published,omitzero"`
}

// silence is after how many seconds without a look an agent hangs.
const silence = 60

// ReadStatus reads the state file of the host whose file system root is.
func ReadStatus(root, stateDir string) (Status, error) {
	state, err := ReadState(stateDir)
	if err != nil {
		return Status{}, err
	}
	reader := qemu.Reader{Root: root}
	status := Status{State: state, Running: state.Agent.PID > 0 && reader.Alive(state.Agent), Published: readPublished(stateDir)}
	up, err := reader.Uptime()
	if err != nil {
		return Status{}, fmt.Errorf("reading /proc: %w", err)
	}
	if silent := up - state.Looked; status.Running && silent > silence {
		status.Silent = int(silent)
	}
	return status, nil
}

// Healthy reports whether an agent runs, looks, and its last look at the host succeeded.
func (s *Status) Healthy() bool { return s.Running && s.Silent == 0 && s.Problem == "" }

// String prints the status for a person.
func (s *Status) String() string {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	switch {
	case s.Format == 0:
		line("no agent ran since the host started: systemctl start numaform-agent")
		return out.String()
	case s.Running:
		line("agent      %s, process %d, isolation %s", s.Version, s.Agent.PID, s.Isolation)
	default:
		line("agent      %s does not run: systemctl status numaform-agent; what follows is what it left", s.Version)
	}
	if s.Problem != "" {
		line("problem    %s", s.Problem)
	}
	if s.Silent > 0 {
		line("problem    it has not looked at the host for %d seconds: systemctl status pve-cluster, then systemctl restart numaform-agent", s.Silent)
	}
	line("CPUs       online %s, pinned %s, shared %s", s.Online, orNone(s.Pinned.String()), orNone(s.Shared.String()))
	for i := range s.Guests {
		line("VM %-7d %s", s.Guests[i].VMID, s.Guests[i].describe())
	}
	for _, c := range s.Confined {
		line("confined   %s to %s", c.Group, c.Now)
	}
	for _, intruder := range s.Intruders {
		text := fmt.Sprintf("guest %d may run on %s", intruder.VMID, intruder.CPUs)
		if intruder.Text != "" {
			text += ": " + intruder.Text
		}
		line("intruder   %s", text)
	}
	s.governors(line)
	s.interrupts(line)
	if s.Published.IsZero() {
		line("published  not since the host started: systemctl status numaform-agent-publish.timer")
	} else {
		line("published  %s", s.Published.Format(time.RFC3339))
	}
	return out.String()
}

// governors prints which CPUs have which governor: policies of which the same is to be
// said share a line.
func (s *Status) governors(line func(string, ...any)) {
	type text struct{ before, after string }
	var order []text
	cpus := map[text]topology.CPUSet{}
	for i := range s.Governors {
		g := &s.Governors[i]
		t := text{"", fmt.Sprintf("%s, was %s", g.Now, g.Was)}
		switch {
		case g.Problem != "":
			t = text{"", "not " + g.Now + ": " + g.Problem}
		case g.Free:
			t.before = "free "
		}
		if g.PutBack > 0 {
			t.after += fmt.Sprintf("; put back %d times", g.PutBack)
		}
		if cpus[t].IsEmpty() {
			order = append(order, t)
		}
		cpus[t] = cpus[t].Union(g.CPUs)
	}
	for _, t := range order {
		line("governor   %sCPUs %s %s", t.before, cpus[t], t.after)
	}
	if s.GovernorNote != "" {
		line("governor   none: %s", s.GovernorNote)
	}
}

// interrupts prints where those of each device are.
func (s *Status) interrupts(line func(string, ...any)) {
	for _, i := range together(s.Interrupts) {
		where := "on CPUs " + i.Now.String()
		if i.Refused != "" {
			where = "left where they are: " + i.Refused
		}
		if i.PutBack > 0 {
			where += fmt.Sprintf("; put back %d times", i.PutBack)
		}
		line("interrupts %d of device %s of VM %d %s", i.count, i.Device, i.VMID, where)
	}
}

func (g *Guest) describe() string {
	var parts []string
	switch {
	case g.Pins != nil:
		parts = append(parts, fmt.Sprintf("pinned %s, emulator %s, cluster %s", cpuList(g.Pins), g.Pins.Emulator, g.Pins.ClusterID))
	case g.Starting:
		parts = append(parts, "starting")
	default:
		parts = append(parts, "not pinned")
	}
	if g.Refused != nil {
		parts = append(parts, fmt.Sprintf("refused (%s): %s", g.Refused.Reason, g.Refused.Text))
	}
	if g.PutBack > 0 {
		parts = append(parts, fmt.Sprintf("put back %d times", g.PutBack))
	}
	return strings.Join(parts, "; ")
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
