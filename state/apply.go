package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/terraform-exec/tfexec"
)

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events. The kinds about resources are the engine's own terms.
const (
	EventStart    EventKind = "apply_start"
	EventProgress EventKind = "apply_progress"
	EventComplete EventKind = "apply_complete"
	EventErrored  EventKind = "apply_errored"
	EventError    EventKind = "error"
	EventUnlocked EventKind = "unlocked"
)

// Event is one step of an apply, or reports that a lock was broken.
type Event struct {
	Kind EventKind
	// Address and Action are the resource's address and the action on it, or empty.
	Address string
	Action  string
	// Message is one line for people, without secrets.
	Message string
}

// Result contains the changes that an apply made, up to its failure or cancellation if it
// did not succeed.
type Result struct {
	// Done are the addresses whose change is complete, in the order of completion.
	Done []string
	// Failed are the addresses whose change failed.
	Failed []string
}

// Apply applies exactly the saved plan, and removes it. A plan can be applied once. When
// ctx ends, Apply interrupts the engine, which waits for running Proxmox tasks, saves the
// state and releases the lock; Apply then returns an error that wraps the context's cause,
// and resources whose creation was interrupted are tainted. If the context's cause is
// ErrHostLost, running tasks are not awaited, and such resources are tainted or missing
// from the state. After a successful apply, it returns a *LostResourcesError if a backend
// other than local does not have the resulting state.
func (w *Workspace) Apply(ctx context.Context, plan *Plan) (*Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	result := &Result{}
	if plan == nil || plan.file == "" || w.client == nil || !strings.HasPrefix(plan.file, w.private(plansDir)) {
		return result, fmt.Errorf("applying %s: the plan was not created by this workspace, or was already applied: plan again", w.config.Dir)
	}
	file := plan.file
	plan.file = ""
	defer removeFile(file) //nolint:errcheck // Close and the next start remove it too
	sum, err := fileSum(file)
	if err != nil {
		return result, fmt.Errorf("applying %s: %w", w.config.Dir, err)
	}
	if sum != plan.SHA256 {
		return result, fmt.Errorf("applying %s: the saved plan was changed on disk: plan again", w.config.Dir)
	}
	if err := ctx.Err(); err != nil {
		return result, fmt.Errorf("applying %s: %w", w.config.Dir, err)
	}
	_, left := knownOf(plan.JSON)
	if err := w.writeKnown(left); err != nil {
		return result, err
	}
	if err = w.collect(gogcApply); err == nil {
		err = w.locking(ctx, "applying", func(ctx context.Context) error { return w.apply(ctx, plan, file, result) })
	}
	err = errors.Join(err, w.collect(gogc), w.secure())
	if err == nil {
		err = w.verify(ctx, left)
	}
	return result, err
}

// collect sets the engine's GOGC.
func (w *Workspace) collect(percent string) error {
	w.env.engine["GOGC"] = percent
	return w.client.SetEnv(w.env.engine)
}

func (w *Workspace) apply(ctx context.Context, plan *Plan, file string, result *Result) error {
	*result = Result{}
	reattach, err := w.reattach(ctx)
	if err != nil {
		return fmt.Errorf("applying %s: %w", w.config.Dir, err)
	}
	if provider := w.provider; provider != nil {
		// The provider ignores the engine's request to stop, and waits for the host. If
		// the provider ends, the engine treats its calls as failed and ends in an orderly
		// way.
		stop := context.AfterFunc(ctx, func() {
			if errors.Is(context.Cause(ctx), ErrHostLost) {
				provider.end()
			}
		})
		defer func() {
			if !stop() {
				w.dismiss() // the next command must not find a provider that is being ended
			}
		}()
	}

	// All creates run at once, because each only waits for Proxmox.
	creates := 0
	for _, rc := range plan.JSON.ResourceChanges {
		if rc.Change != nil && rc.Change.Actions.Create() {
			creates++
		}
	}
	o := &output{}
	s := &stream{workspace: w, result: result, output: o}
	return w.run(ctx, "applying", o, io.Discard, func(tf *tfexec.Terraform) error {
		return tf.ApplyJSON(ctx, s, tfexec.DirOrPlan(file), tfexec.LockTimeout(w.config.LockTimeout.String()),
			tfexec.Parallelism(max(w.config.Parallelism, creates)), reattach)
	})
}

// message is one line of the engine's machine-readable output. tfjson defines only the
// envelope.
type message struct {
	Message string `json:"@message"`
	Type    string `json:"type"`
	Hook    struct {
		Resource struct {
			Address string `json:"addr"`
		} `json:"resource"`
		Action string `json:"action"`
	} `json:"hook"`
	Diagnostic struct {
		Severity string `json:"severity"`
		Summary  string `json:"summary"`
		Detail   string `json:"detail"`
		Address  string `json:"address"`
	} `json:"diagnostic"`
}

// stream receives the output of an apply, one line per Write.
type stream struct {
	workspace *Workspace
	result    *Result
	output    *output
}

// Write implements io.Writer.
func (s *stream) Write(line []byte) (int, error) {
	var m message
	if json.Unmarshal(line, &m) != nil {
		return len(line), nil //nolint:nilerr // other output is no event
	}
	event := Event{
		Kind:    EventKind(m.Type),
		Address: m.Hook.Resource.Address,
		Action:  m.Hook.Action,
		Message: s.workspace.hidden.Replace(m.Message),
	}
	switch event.Kind {
	case EventStart, EventProgress:
	case EventComplete:
		s.result.Done = append(s.result.Done, event.Address)
	case EventErrored:
		s.result.Failed = append(s.result.Failed, event.Address)
	case "diagnostic":
		if m.Diagnostic.Severity != "error" {
			return len(line), nil
		}
		event.Kind = EventError
		event.Address = m.Diagnostic.Address
		text := m.Diagnostic.Summary
		if m.Diagnostic.Address != "" {
			text = m.Diagnostic.Address + ": " + text
		}
		if m.Diagnostic.Detail != "" {
			text += ": " + m.Diagnostic.Detail
		}
		s.output.errors = append(s.output.errors, text)
		// The engine reports this for each resource of a run that was interrupted.
		if m.Diagnostic.Summary == "execution halted" {
			return len(line), nil
		}
	default:
		return len(line), nil
	}
	fmt.Fprintln(s.workspace.config.Log, event.Message)
	s.workspace.config.Progress(event)
	return len(line), nil
}
