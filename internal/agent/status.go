package agent

import (
	"fmt"
	"strings"

	"github.com/numaform/numaform/internal/agent/qemu"
)

// Status is the state with what it says of the agent now.
type Status struct {
	State
	// Running is false if the process that wrote the state is gone.
	Running bool `json:"running"`
}

// ReadStatus reads the state file of the host whose file system root is.
func ReadStatus(root, stateDir string) (Status, error) {
	state, err := ReadState(stateDir)
	if err != nil {
		return Status{}, err
	}
	running := state.Agent.PID > 0 && qemu.Reader{Root: root}.Alive(state.Agent)
	return Status{State: state, Running: running}, nil
}

// Healthy reports whether an agent runs and its last look at the host succeeded.
func (s *Status) Healthy() bool { return s.Running && s.Problem == "" }

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
	return out.String()
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
