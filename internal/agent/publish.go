package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/sysfs"
	"github.com/numaform/numaform/topology"
)

// maxNotes is Proxmox' limit for the length of a host's notes.
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
	// Unwell is why nothing was published about the daemon, or empty.
	Unwell string
}

// refresh is the maximum age of the agent's block before it is rewritten unchanged:
// numaform considers an agent dead after 15 minutes.
const refresh = 4 * time.Minute

// Publish writes the exact topology and, if the daemon is well, its status. Other content
// of the notes is preserved. If the daemon is not well, its last status remains and grows
// old. If nothing changed, nothing is written.
func (p Publisher) Publish(ctx context.Context) (Publication, error) {
	file, err := sysfs.Collect(os.DirFS(p.Root))
	if err != nil {
		return Publication{}, err
	}
	was, digest, err := p.read(ctx)
	if err != nil {
		return Publication{}, err
	}
	notes, err := file.PublishIn(was)
	if err != nil {
		return Publication{}, err
	}
	status, err := ReadStatus(p.Root, p.StateDir)
	if err != nil || !status.Healthy() {
		return p.write(ctx, was, digest, notes, Publication{Unwell: status.unwell(err)})
	}
	agent := status.published()
	agent.PCINodes = p.pciNodes()
	if agent.At = p.at(agent, was); agent.At.IsZero() {
		agent.At = p.Now().UTC().Truncate(time.Second)
	}
	// A truncated block would seem to end where the new block does.
	if _, err = agent.PublishIn(was); err == nil {
		notes, err = agent.PublishIn(notes)
	}
	if err != nil {
		return Publication{}, err
	}
	done, err := p.write(ctx, was, digest, notes, Publication{})
	if err == nil {
		err = writePublished(p.StateDir, agent.At)
	}
	return done, err
}

// at returns when the same status was written to these notes, or the zero time if it was
// not, or too long ago.
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

func (p Publisher) path() string { return "/nodes/" + p.Host + "/config" }

// read returns the notes, and a digest to detect concurrent changes.
func (p Publisher) read(ctx context.Context) (notes, digest string, err error) {
	text, err := p.Pvesh(ctx, "get", p.path(), "--output-format", "json")
	if err != nil {
		return "", "", fmt.Errorf("reading the notes of %s: %w", p.Host, err)
	}
	var config struct {
		Description string `json:"description"`
		Digest      string `json:"digest"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return "", "", fmt.Errorf("reading the notes of %s: %w", p.Host, err)
	}
	return config.Description, config.Digest, nil
}

func (p Publisher) write(ctx context.Context, was, digest, notes string, done Publication) (Publication, error) {
	if strings.TrimSpace(notes) == strings.TrimSpace(was) {
		return done, nil
	}
	if len(notes) > maxNotes {
		return Publication{}, fmt.Errorf("publishing topology: the notes of %s would have %d bytes of %d: shorten them, or use "+
			"`numaform topology collect` and machines in numaform.yaml", p.Host, len(notes), maxNotes)
	}
	args := []string{"set", p.path(), "--description", notes}
	if digest != "" {
		args = append(args, "--digest", digest)
	}
	if _, err := p.Pvesh(ctx, args...); err != nil {
		return Publication{}, fmt.Errorf("writing the notes of %s: %w", p.Host, err)
	}
	done.Written = true
	return done, nil
}

// unwell explains in one line why the daemon is not well.
func (s *Status) unwell(err error) string {
	switch {
	case err != nil:
		return err.Error()
	case !s.Running:
		return "it does not run"
	case s.Problem != "":
		return "its last look at the host failed: " + strings.Join(strings.Fields(s.Problem), " ")
	default:
		return fmt.Sprintf("it has not looked at the host for %d seconds", s.Silent)
	}
}

// published returns the status for numaform. Guests without a marker are not numaform's. It
// is unknown whether a guest has one if its configuration is unreadable.
func (s *Status) published() topology.Agent {
	agent := topology.Agent{
		Version: s.Version, Isolation: string(s.Isolation), Clusters: s.Clusters, MaxPinnedPercent: s.MaxPinnedPercent,
		ReservedCPUs: s.Reserved, Pinned: map[int]topology.Pins{}, Refused: map[int]string{},
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

// publishedFile returns the file, beside the state, with the time of the last publication.
func publishedFile(dir string) string { return filepath.Join(dir, "published") }

func writePublished(dir string, at time.Time) error {
	if err := renameio.WriteFile(publishedFile(dir), []byte(at.Format(time.RFC3339)+"\n"), 0o644); err != nil {
		return fmt.Errorf("keeping when the topology was published: %w", err)
	}
	return nil
}

func readPublished(dir string) time.Time {
	data, err := os.ReadFile(publishedFile(dir))
	if err != nil {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(string(data)))
	if err != nil {
		return time.Time{}
	}
	return at
}
