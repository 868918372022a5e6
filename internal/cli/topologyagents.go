package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/numaform/numaform/topology"
)

// agentLines describes the state of a host's agent for VMs of the cluster, in lines of at
// most columns characters.
func agentLines(host *topology.Host, clusterID string, columns int) []byte {
	if host.ReadAt.IsZero() || host.Problem != "" {
		return nil
	}
	var out bytes.Buffer
	if a := host.Agent; a != nil {
		fold(&out, columns, fmt.Sprintf("agent %s, isolation %s, heard of %s before", a.Version, a.Isolation, heard(host)))
	} else {
		out.WriteString("agent none\n")
	}
	for _, fault := range agentFaults(host, clusterID) {
		fold(&out, columns, fmt.Sprintf("agent problem: it %s", fault))
	}
	return out.Bytes()
}

// fold wraps a sentence into lines of at most columns characters, if the words allow it.
func fold(out *bytes.Buffer, columns int, sentence string) {
	room := 0
	for i, word := range strings.Fields(sentence) {
		switch length := len([]rune(word)); {
		case i == 0:
			room = columns - length
		case length < room:
			out.WriteByte(' ')
			room -= length + 1
		default:
			out.WriteString("\n  ")
			room = columns - 2 - length
		}
		out.WriteString(word)
	}
	out.WriteByte('\n')
}

// agentFaults returns what is wrong with a host's agent, each with its fix. A missing
// agent is not in itself a fault.
func agentFaults(host *topology.Host, clusterID string) []string {
	var lines []string
	for _, fault := range host.AgentFaults(clusterID, host.ReadAt) {
		if fault.State != topology.AgentAbsent {
			lines = append(lines, fault.What+": "+fault.Mend)
		}
	}
	return lines
}

// heard returns the age of the agent's last publication when the host was read.
func heard(host *topology.Host) string { return topology.Age(max(host.ReadAt.Sub(host.Agent.At), 0)) }

// hostTable returns one line for each host, with the faults of their agents below.
func hostTable(hosts []topology.Host, clusterID string, wide bool) []byte {
	var out bytes.Buffer
	table := tabwriter.NewWriter(&out, 2, 8, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(table, strings.Join(cells, "\t")) }
	head := []string{"HOST", "CPUS", "NUMA NODES", "CONFIDENCE", "AGENT", "ISOLATION", "HEARD OF", "STATE"}
	if wide {
		head = append(head, "CLUSTERS", "RESERVED CPUS", "PINNED", "REFUSED")
	}
	row(head...)
	var problems []string
	for i := range hosts {
		host := &hosts[i]
		cells := []string{
			host.ID().String(), fmt.Sprint(host.OnlineCPUs().Size()), fmt.Sprint(len(host.NUMANodes)), string(host.Confidence()),
		}
		row(append(cells, agentCells(host, clusterID, wide)...)...)
		if host.Problem != "" {
			problems = append(problems, fmt.Sprintf("%s %s", host.ID(), host.Problem))
			continue
		}
		for _, fault := range agentFaults(host, clusterID) {
			problems = append(problems, fmt.Sprintf("%s %s", host.ID(), fault))
		}
	}
	_ = table.Flush() // it writes to memory
	if len(problems) > 0 {
		fmt.Fprintf(&out, "\n%s\n", strings.Join(problems, "\n"))
	}
	return out.Bytes()
}

func agentCells(host *topology.Host, clusterID string, wide bool) []string {
	state := string(host.AgentState(clusterID, host.ReadAt))
	if host.ReadAt.IsZero() {
		state = string(topology.AgentUnread)
	}
	a := host.Agent
	if a == nil {
		cells := []string{"-", "-", "-", state, "-", "-", "-", "-"}
		return cells[:agentColumns(wide)]
	}
	cells := []string{
		a.Version, a.Isolation, heard(host) + " ago", state,
		orDash(strings.Join(slices.Sorted(slices.Values(a.Clusters)), ",")), orDash(a.ReservedCPUs.String()),
		fmt.Sprint(len(a.Pinned)), fmt.Sprint(len(a.Refused)),
	}
	return cells[:agentColumns(wide)]
}

func agentColumns(wide bool) int {
	if wide {
		return 8
	}
	return 4
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
