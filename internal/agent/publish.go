package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/renameio/v2"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/sysfs"
	"github.com/numaform/numaform/topology"
)

// maxNotes is the limit of Proxmox for the length of a host's notes.
const maxNotes = 65536

// Pvesh runs the pvesh command with these arguments and returns its output.
type Pvesh func(ctx context.Context, args ...string) ([]byte, error)

// RunPvesh is the Pvesh of a Proxmox host.
func RunPvesh(ctx context.Context, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, "/usr/bin/pvesh", args...) //nolint:gosec // arguments are ours, and no shell reads them
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("running pvesh %s %s: %w: %s", args[0], args[1], err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// Publisher writes the facts that numaform needs into the host's notes in Proxmox.
type Publisher struct {
	// Root is the root directory of the host's file system, and StateDir the directory of
	// the daemon's state.
	Root, StateDir string
	// Host is the host's name in Proxmox.
	Host  string
	Pvesh Pvesh
	Now   func() time.Time
}

// Publication is the result of Publish.
type Publication struct {
	// Written is false if the notes were already up to date.
	Written bool
	// Unwell is the reason why the daemon's status was not published, or empty.
	Unwell string
	// Problem is the published error of the daemon's last round, or empty.
	Problem string
}

// refresh is the maximum age of the agent's block before it is rewritten unchanged:
// numaform considers an agent dead after 15 minutes.
const refresh = 4 * time.Minute

// Publish writes the exact topology and, if the daemon is running and not hung, its status,
// with the error of its last round. Other content of the notes is preserved. If the daemon is
// not running or hung, its last status remains in the notes with the time of its publication.
// If nothing changed, nothing is written.
func (p Publisher) Publish(ctx context.Context) (Publication, error) {
	file, err := sysfs.Collect(os.DirFS(p.Root))
	if err != nil {
		return Publication{}, err
	}
	path := "/nodes/" + p.Host + "/config"
	text, err := p.Pvesh(ctx, "get", path, "--output-format", "json")
	if err != nil {
		return Publication{}, fmt.Errorf("reading the notes of %s: %w", p.Host, err)
	}
	var config struct {
		Description string `json:"description"`
		// Digest detects concurrent changes.
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return Publication{}, fmt.Errorf("reading the notes of %s: %w", p.Host, err)
	}
	notes, err := file.PublishIn(config.Description)
	if err != nil {
		return Publication{}, err
	}

	var done Publication
	var agent topology.Agent
	status, err := ReadStatus(p.Root, p.StateDir)
	switch {
	case err != nil:
		done.Unwell = err.Error()
	case !status.Running:
		done.Unwell = "the agent is not running"
	case status.Silent > 0:
		done.Unwell = fmt.Sprintf("the agent's last round was %d seconds ago", status.Silent)
	default:
		agent = status.published()
		done.Problem = agent.Problem
		agent.PCINodes = p.pciNodes()
		if agent.At = p.at(agent, config.Description); agent.At.IsZero() {
			agent.At = p.Now().UTC().Truncate(time.Second)
		}
		// Check the notes without the new topology: a block that lacks its end would appear to
		// end where the topology ends.
		if _, err = agent.PublishIn(config.Description); err == nil {
			notes, err = agent.PublishIn(notes)
		}
		if err != nil {
			return Publication{}, err
		}
	}

	if strings.TrimSpace(notes) != strings.TrimSpace(config.Description) {
		if len(notes) > maxNotes {
			return Publication{}, fmt.Errorf("publishing topology: the notes of %s would have %d bytes, but the limit is %d: shorten them, or use "+
				"`numaform topology collect` and machines in numaform.yaml", p.Host, len(notes), maxNotes)
		}
		args := []string{"set", path, "--description", notes}
		if config.Digest != "" {
			args = append(args, "--digest", config.Digest)
		}
		if _, err := p.Pvesh(ctx, args...); err != nil {
			return Publication{}, fmt.Errorf("writing the notes of %s: %w", p.Host, err)
		}
		done.Written = true
	}
	if done.Unwell == "" {
		if err := renameio.WriteFile(publishedFile(p.StateDir), []byte(agent.At.Format(time.RFC3339)+"\n"), 0o644); err != nil {
			return done, fmt.Errorf("recording the time of the publication: %w", err)
		}
	}
	return done, nil
}

// at returns the time at which the same status was written to these notes. It returns the
// zero time if the notes contain another status, or the time is too long ago.
func (p Publisher) at(agent topology.Agent, notes string) time.Time {
	said, found, err := topology.ParseAgent(notes)
	if age := p.Now().Sub(said.At); err != nil || !found || age < 0 || age >= refresh {
		return time.Time{}
	}
	agent.At = said.At
	now, err := agent.PublishIn("")
	before, problem := said.PublishIn("")
	if err != nil || problem != nil || now != before {
		return time.Time{}
	}
	return said.At
}

// published returns the status for numaform. It omits an unread guest without pins, because
// such a guest may have no marker and not be numaform's.
func (s *Status) published() topology.Agent {
	agent := topology.Agent{
		Version:          s.Version,
		Isolation:        string(s.Isolation),
		Clusters:         s.Clusters,
		MaxPinnedPercent: s.MaxPinnedPercent,
		ReservedCPUs:     s.Reserved,
		Problem:          oneLine(s.Problem, topology.MaxAgentProblem),
		Pinned:           map[int]topology.Pins{},
		Refused:          map[int]string{},
	}
	for i := range s.Guests {
		guest := &s.Guests[i]
		if guest.Pins != nil {
			agent.Pinned[guest.VMID] = guest.Pins.CPUs
		}
		if guest.Refused != nil && (guest.Pins != nil || guest.Refused.Reason != claim.ReasonUnread) {
			agent.Refused[guest.VMID] = string(guest.Refused.Reason)
		}
	}
	return agent
}

// oneLine returns at most limit bytes of a text, as one line without unprintable characters.
func oneLine(text string, limit int) string {
	line := strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) && r != utf8.RuneError {
			return r
		}
		return '?'
	}, strings.Join(strings.Fields(text), " "))
	if len(line) <= limit {
		return line
	}
	const more = "…"
	line = line[:limit-len(more)]
	for !utf8.ValidString(line) {
		line = line[:len(line)-1] // of a rune that was cut
	}
	return line + more
}

// publishedFile returns the file, beside the state, with the time of the last publication.
func publishedFile(dir string) string { return filepath.Join(dir, "published") }

// Paths below Publisher.Root: the resource mappings of PCI devices in Proxmox, and the PCI
// devices in sysfs.
const (
	mappingFile = "etc/pve/mapping/pci.cfg"
	pciDir      = "sys/bus/pci/devices"
)

// pciNodes returns the NUMA nodes of the host's devices in resource mappings, by address.
// Devices whose node Linux does not report are skipped.
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
			// A whole device has the node of its first function.
			name := address
			if !strings.Contains(name, ".") {
				name += ".0"
			}
			data, err := os.ReadFile(filepath.Join(p.Root, pciDir, name, "numa_node"))
			if err != nil {
				continue
			}
			node, err := strconv.Atoi(strings.TrimSpace(string(data)))
			if err == nil && node >= 0 && node <= topology.MaxCPU && len(nodes) < topology.MaxPCINodes {
				nodes[address] = node
			}
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return nodes
}
