package proxmox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/numaform/numaform/topology"
)

// notesAge is the age from which the host agent's data is read again. The agent publishes
// every five minutes.
const notesAge = time.Minute

// notesRead is a host's notes, or why they cannot be read.
type notesRead struct {
	text string
	err  error
}

// readNotes reads a host's notes, and its agent's data in them. The notes also contain
// the published topology; the same permission applies to both.
func (c *Client) readNotes(ctx context.Context, host *topology.Host) notesRead {
	var config struct {
		Description string `json:"description"`
	}
	err := c.get(ctx, fmt.Sprintf("/nodes/%s/config", host.Name), &config)
	host.NotesAt, host.Agent, host.AgentProblem = host.ReadAt, nil, ""
	if err != nil {
		host.AgentProblem = "its notes cannot be read: " + short(err)
		return notesRead{err: err}
	}
	agent, found, err := topology.ParseAgent(config.Description)
	switch {
	case err != nil:
		host.AgentProblem = "what it says in the host's notes cannot be understood: " + err.Error()
	case found:
		host.Agent = &agent
	}
	return notesRead{text: config.Description}
}

// topology returns the machine published in the notes.
func (n notesRead) topology(host *topology.Host) (topology.Machine, bool) {
	machine, found, err := topology.ParsePublished(n.text)
	if err != nil {
		warn(host, "the topology in its notes is not used: "+err.Error())
		return topology.Machine{}, false
	}
	return machine, found
}

// keepAgent copies the previous data about a host's agent, and reads it again if it is
// old. If that fails for a reason other than a refusal, the previous data remains and
// ages.
func (c *Client) keepAgent(ctx context.Context, host, known *topology.Host) {
	host.Agent, host.AgentProblem = known.Agent, known.AgentProblem
	host.Contradicted, host.NotesAt = known.Contradicted, known.NotesAt
	if host.Problem != "" {
		host.ReadAt = known.ReadAt
		return
	}
	if host.ReadAt.Sub(known.NotesAt) < notesAge {
		return
	}
	if notes := c.readNotes(ctx, host); passing(notes.err) && known.Agent != nil {
		host.Agent, host.AgentProblem = known.Agent, ""
	}
}

// passing reports whether a failed request may succeed the next time.
func passing(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && (refused.noAnswer() || refused.retryable())
}
