package agent

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

// Status is the state together with the agent's liveness.
type Status struct {
	State
	// Running is false if the process that wrote the state has ended.
	Running bool `json:"running"`
	// Silent is the number of seconds since the last recorded round if the agent is running
	// and the number exceeds 60, and 0 otherwise.
	Silent int `json:"silent,omitempty"`
	// Published is when the status was last written to the host's notes, or zero.
	Published time.Time `json:"published,omitzero"`
}

// silence is the number of seconds without a round after which an agent counts as hung.
const silence = 60

// ReadStatus reads the state of the host whose file system is at root.
func ReadStatus(root, stateDir string) (Status, error) {
	state, err := ReadState(stateDir)
	if err != nil {
		return Status{}, err
	}
	reader := qemu.Reader{Root: root}
	status := Status{State: state, Running: state.Agent.PID > 0 && reader.Alive(state.Agent)}
	if data, err := os.ReadFile(publishedFile(stateDir)); err == nil {
		status.Published, _ = time.Parse(time.RFC3339, strings.TrimSpace(string(data))) // the zero time if the text is invalid
	}
	up, err := reader.Uptime()
	if err != nil {
		return Status{}, fmt.Errorf("reading /proc: %w", err)
	}
	if silent := up - state.Looked; status.Running && silent > silence {
		status.Silent = int(silent)
	}
	return status, nil
}

// Healthy reports whether an agent is running, not silent, and its last round succeeded.
func (s *Status) Healthy() bool { return s.Running && s.Silent == 0 && s.Problem == "" }

// String formats the status for a terminal.
func (s *Status) String() string {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	switch {
	case s.Format == 0:
		line("no agent has run since the host started or its pins were released: systemctl start numaform-agent")
		return out.String()
	case s.Running:
		line("agent      %s, process %d, isolation %s", s.Version, s.Agent.PID, s.Isolation)
	default:
		line("agent      %s is not running: systemctl status numaform-agent; its last report follows", s.Version)
	}
	if s.Problem != "" {
		line("problem    %s", s.Problem)
	}
	if s.Silent > 0 {
		line("problem    its last round was %d seconds ago: systemctl status pve-cluster, then systemctl restart numaform-agent", s.Silent)
	}
	line("CPUs       online %s, pinned %s, shared %s", s.Online, cmp.Or(s.Pinned.String(), "none"), cmp.Or(s.Shared.String(), "none"))
	for i := range s.Guests {
		g := &s.Guests[i]
		text := "not pinned"
		switch {
		case g.Pins != nil:
			text = fmt.Sprintf("pinned %s, emulator %s, cluster %s", cpuList(g.Pins), g.Pins.Emulator, g.Pins.ClusterID)
		case g.Starting:
			text = "starting"
		}
		if g.Refused != nil {
			text += fmt.Sprintf("; refused (%s): %s", g.Refused.Reason, g.Refused.Text)
		}
		line("VM %-7d %s%s", g.VMID, text, putBack(g.PutBack))
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

	s.formatGovernors(line)
	if s.GovernorNote != "" {
		line("governor   none: %s", s.GovernorNote)
	}

	for _, i := range together(s.Interrupts) {
		where := "on CPUs " + i.Now.String()
		if i.Refused != "" {
			where = "not moved: " + i.Refused
		}
		line("interrupts %d of device %s of VM %d %s%s", i.count, i.Device, i.VMID, where, putBack(i.PutBack))
	}
	if s.Published.IsZero() {
		line("published  not yet: systemctl status numaform-agent-publish.timer")
	} else {
		line("published  %s", s.Published.Format(time.RFC3339))
	}
	return out.String()
}

// formatGovernors writes the status of the frequency policies. Policies with the same
// status share a line.
func (s *Status) formatGovernors(line func(format string, args ...any)) {
	type status struct{ before, after string }
	var order []status
	cpus := map[status]topology.CPUSet{}
	for i := range s.Governors {
		g := &s.Governors[i]
		text := status{after: fmt.Sprintf("%s, was %s", g.Now, g.Was)}
		switch {
		case g.Problem != "":
			text.after = "not " + g.Now + ": " + g.Problem
		case g.Free:
			text.before = "free "
		}
		text.after += putBack(g.PutBack)
		if cpus[text].IsEmpty() {
			order = append(order, text)
		}
		cpus[text] = cpus[text].Union(g.CPUs)
	}
	for _, text := range order {
		line("governor   %sCPUs %s %s", text.before, cpus[text], text.after)
	}
}

func putBack(times int) string {
	switch times {
	case 0:
		return ""
	case 1:
		return "; restored once"
	}
	return fmt.Sprintf("; restored %d times", times)
}
