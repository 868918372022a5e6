package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
	tfjson "github.com/hashicorp/terraform-json"
)

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events; for resources they are the engine's own terms.
const (
	EventStart    EventKind = "apply_start"
	EventProgress EventKind = "apply_progress"
	EventComplete EventKind = "apply_complete"
	EventErrored  EventKind = "apply_errored"
	EventError    EventKind = "error"
	EventUnlocked EventKind = "unlocked"
)

// Event is one step of an apply.
type Event struct {
	Kind EventKind
	// Address and Action are the resource's, if the event is about one.
	Address string
	Action  string
	Elapsed time.Duration
	// Message is one line for people, without secrets.
	Message string
}

// Result is what an apply did. If the apply failed or was canceled, it covers the part up
// to then.
type Result struct {
	// Done are the addresses whose change is complete, in the order of completion.
	Done []string
	// Failed are the addresses whose change failed.
	Failed []string
	// Add, Change, Import and Remove are the engine's counts; 0 if it failed.
	Add, Change, Import, Remove int
}

// Apply applies exactly the saved plan, and removes it. A plan can be applied once. When
// ctx ends, Apply interrupts the engine, which waits for running Proxmox tasks, saves the
// state and releases the lock; Apply then returns the context's error, and interrupted
// resources are tainted. If the context's cause is ErrHostLost, running tasks are not
// awaited, and interrupted resources are missing from the state.
func (w *Workspace) Apply(ctx context.Context, plan *Plan) (*Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	result := &Result{}
	if plan == nil || plan.file == "" || w.client == nil || !strings.HasPrefix(plan.file, w.private(plansDir)) {
		return result, fmt.Errorf("applying %s: the plan was not made by this workspace, or was applied before: plan again", w.config.Dir)
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
	if err := w.remember(left); err != nil {
		return result, err
	}
	err = w.locking(ctx, "applying", func(ctx context.Context) error { return w.apply(ctx, plan, file, result) })
	err = errors.Join(err, w.secure())
	if err == nil {
		err = w.verify(ctx, left)
	}
	return result, err
}

func (w *Workspace) apply(ctx context.Context, plan *Plan, file string, result *Result) error {
	*result = Result{}
	if err := w.restore(); err != nil {
		return err
	}
	s := &stream{workspace: w, result: result}
	o := &output{}
	w.capture(o, false)
	reattach, err := w.reattach(ctx)
	if err != nil {
		return fmt.Errorf("applying %s: %w", w.config.Dir, err)
	}
	awaited := w.dismissWhenLost(ctx)
	err = w.client.ApplyJSON(ctx, s, append(applyOptions(w.config, plan.JSON, file), reattach)...)
	awaited()
	w.client.SetStdout(io.Discard)
	if err != nil {
		return w.failure(ctx, "applying", err, strings.Join(s.errors, "\n"), o.said(), w.fallen())
	}
	return nil
}

// applyOptions returns the options of apply. All creates run at once, because each only
// waits for Proxmox.
func applyOptions(c Config, plan *tfjson.Plan, file string) []tfexec.ApplyOption {
	return []tfexec.ApplyOption{
		tfexec.DirOrPlan(file), tfexec.LockTimeout(c.LockTimeout.String()),
		tfexec.Parallelism(max(c.Parallelism, creates(plan))),
	}
}

func creates(plan *tfjson.Plan) int {
	n := 0
	for _, rc := range plan.ResourceChanges {
		if rc.Change != nil && rc.Change.Actions.Create() {
			n++
		}
	}
	return n
}

// message is one line of the engine's machine-readable output. tfjson defines only the
// envelope.
type message struct {
	Level   string `json:"@level"`
	Message string `json:"@message"`
	Type    string `json:"type"`
	Hook    struct {
		Resource struct {
			Address string `json:"addr"`
		} `json:"resource"`
		Action  string  `json:"action"`
		Elapsed float64 `json:"elapsed_seconds"`
	} `json:"hook"`
	Changes struct {
		Add    int `json:"add"`
		Change int `json:"change"`
		Import int `json:"import"`
		Remove int `json:"remove"`
	} `json:"changes"`
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
	errors    []string
}

// Write implements io.Writer.
func (s *stream) Write(line []byte) (int, error) {
	var m message
	if json.Unmarshal(line, &m) == nil {
		s.take(m)
	}
	return len(line), nil
}

func (s *stream) take(m message) {
	hide := s.workspace.hidden.hide
	event := Event{
		Kind: EventKind(m.Type), Address: m.Hook.Resource.Address, Action: m.Hook.Action,
		Elapsed: time.Duration(m.Hook.Elapsed * float64(time.Second)), Message: hide(m.Message),
	}
	switch m.Type {
	case string(EventStart), string(EventProgress):
	case string(EventComplete):
		s.result.Done = append(s.result.Done, event.Address)
	case string(EventErrored):
		s.result.Failed = append(s.result.Failed, event.Address)
	case "change_summary":
		s.result.Add, s.result.Change, s.result.Import, s.result.Remove = m.Changes.Add, m.Changes.Change, m.Changes.Import, m.Changes.Remove
		return
	case "diagnostic":
		if m.Diagnostic.Severity != "error" {
			return
		}
		event.Kind, event.Address = EventError, m.Diagnostic.Address
		s.errors = append(s.errors, diagnosis(m))
	default:
		return
	}
	fmt.Fprintln(s.workspace.config.Log, event.Message)
	s.workspace.config.Progress(event)
}

// diagnosis returns an error of the engine as one paragraph.
func diagnosis(m message) string {
	text := m.Diagnostic.Summary
	if m.Diagnostic.Address != "" {
		text = m.Diagnostic.Address + ": " + text
	}
	if m.Diagnostic.Detail != "" {
		text += ": " + m.Diagnostic.Detail
	}
	return text
}
