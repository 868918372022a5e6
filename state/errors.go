package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ErrStalePlan reports that the state has changed since the plan was made.
var ErrStalePlan = errors.New("the saved plan is stale, the state changed since: plan again")

// ErrHostLost is the cause of a context canceled because the host went down: its
// providers are ended without waiting for them.
var ErrHostLost = errors.New("the host is lost")

// ErrBusy reports that another numaform works in the directory.
var ErrBusy = errors.New("another numaform works in this directory: wait for it, or end it")

// CommandError reports that the engine failed. Text is the engine's output, without
// secrets.
type CommandError struct {
	// Operation is a gerund such as "planning".
	Operation string
	Dir       string
	Text      string
	// Backend is the kind of the state's backend if the backend did not respond
	// correctly, or else empty.
	Backend string
	cause   error
	// killed is set if the engine was killed by a signal that it cannot catch, so that
	// its lock remains.
	killed bool
}

// Error says what failed, where, and the engine's reasons.
func (e *CommandError) Error() string {
	reason := e.Text
	if reason == "" && e.cause != nil {
		reason = e.cause.Error()
	}
	if e.Backend == "" {
		return fmt.Sprintf("%s %s: %s", e.Operation, e.Dir, reason)
	}
	return fmt.Sprintf("%s %s: the %s backend of the state does not answer as it must: %s: %s; see that it runs, that it can be reached from here, "+
		"and that its address and the credential in the environment are right; then run numaform again", e.Operation, e.Dir, e.Backend, reason, e.done())
}

// done says what a command may have done although its backend did not respond. A command
// that held the lock may have completed and failed only to release it.
func (e *CommandError) done() string {
	kept := filepath.Join(e.Dir, erroredState)
	if _, err := os.Stat(kept); err == nil {
		return "what was done is kept in " + kept + " and saved first by the next run"
	}
	reads := []string{"initializing", downloading, "planning", "reading plan of", "reading the state of", "starting the engine in", "taking the lock of"}
	if slices.Contains(reads, e.Operation) || strings.Contains(e.Text, "acquiring the state lock") {
		return "nothing was changed"
	}
	return "the next run finds out what of it was done"
}

// Unwrap returns the context's error if the operation was canceled, or
// ErrStalePlan, or nil.
func (e *CommandError) Unwrap() error { return e.cause }

// Holder says what is known about a lock's holder.
type Holder string

// The states of a lock's holder.
const (
	// HolderUnknown means that the holder may be alive. Only a person may break the lock.
	HolderUnknown Holder = "unknown"
	// HolderGone means that, by host and time, the holder is an engine that this
	// workspace started and that has died.
	HolderGone Holder = "gone"
)

// LockedError reports that another client holds the state's lock.
type LockedError struct {
	// ID is the argument of Unlock. It is empty if the lock belongs to a connection: it
	// ends with the connection and cannot be broken.
	ID        string
	Path      string
	Operation string
	// Who is the holder, as user@host.
	Who     string
	Created time.Time
	Holder  Holder
	// Proof says why the holder is considered gone, and what remains uncertain.
	Proof string
	Dir   string
}

// Error says who holds which lock since when, and how to fix it.
func (e *LockedError) Error() string {
	since := "a time that the backend does not tell"
	if !e.Created.IsZero() {
		since = e.Created.UTC().Format(time.RFC3339)
	}
	if e.ID == "" {
		return fmt.Sprintf("state of %s: locked by %s since %s for %s: wait for it; the lock ends with the connection of whoever holds it",
			e.Dir, e.Who, since, e.Operation)
	}
	if e.Operation == initOperation {
		return fmt.Sprintf("state of %s: locked by %s since %s for init: wait for it; if it is surely dead, run "+
			"`kubectl delete lease lock-tfstate-default-%s` in the namespace of the states", e.Dir, e.Who, since, backendOf(e.Dir).settings["secret_suffix"])
	}
	return fmt.Sprintf("state of %s: locked by %s since %s for %s (lock %s, holder %s): wait for it; "+
		"if it is surely dead, run `force-unlock %s` there", e.Dir, e.Who, since, e.Operation, e.ID, e.Holder, e.ID)
}

// initOperation is what the first init locks a state in Kubernetes for. The engine cannot
// break this lock: its force-unlock reads the state first, and so takes it, too.
const initOperation = "init"

// lockField matches a line of the engine's description of a lock.
var lockField = regexp.MustCompile(`(?m)^[\s│|]*(ID|Path|Operation|Who|Created):[ \t]+(.*?)\s*$`)

// lockAccount matches what precedes the engine's account of a lock; the latter is how
// init in Kubernetes says it.
var lockAccount = regexp.MustCompile(`acquiring the state lock|already locked by another`)

// heldID matches the holder's ID in a description that is otherwise about the requester.
var heldID = regexp.MustCompile(`already locked: ID=(\S+)`)

// lockTime is the engine's time format: Go's Time.String.
const lockTime = "2006-01-02 15:04:05.999999999 -0700 MST"

// parseLock parses the engine's description of the lock's holder. It returns nil if the
// engine failed for another reason.
func parseLock(text string) *LockedError {
	at := lockAccount.FindStringIndex(text)
	if at == nil {
		return nil
	}
	account := text[at[1]:]
	e := &LockedError{Holder: HolderUnknown, Who: "someone", Operation: "an operation"}
	for _, field := range lockField.FindAllStringSubmatch(account, -1) {
		switch field[1] {
		case "ID":
			e.ID = field[2]
		case "Path":
			e.Path = field[2]
		case "Operation":
			e.Operation = field[2]
		case "Who":
			e.Who = field[2]
		case "Created":
			if t, err := time.Parse(lockTime, field[2]); err == nil {
				e.Created = t
			}
		}
	}
	if id := heldID.FindStringSubmatch(account); id != nil {
		e.ID = id[1]
	}
	// Without a description of a holder, the backend could not be reached.
	if e.ID == "" {
		return nil
	}
	return e
}

// failure converts an error of terraform-exec and the engine's output. It does not wrap
// the engine's error, whose text may contain secrets.
func (w *Workspace) failure(ctx context.Context, operation string, err error, said ...string) error {
	said = slices.DeleteFunc(said, func(s string) bool { return s == "" })
	text := w.hidden.hide(strings.TrimSpace(strings.Join(said, "\n")))
	if locked := parseLock(text); locked != nil && ctx.Err() == nil {
		w.judge(locked)
		return locked
	}
	failure := &CommandError{Operation: operation, Dir: w.config.Dir, Text: text}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status, ok := exit.Sys().(syscall.WaitStatus)
		failure.killed = ok && status.Signaled()
	}
	switch {
	case ctx.Err() != nil:
		failure.cause = context.Cause(ctx)
		failure.Text = strings.TrimSpace("canceled\n" + text)
	case strings.Contains(text, "Saved plan is stale"):
		failure.Text, failure.cause = "", ErrStalePlan
	case text == "" && exit != nil:
		failure.Text = exit.Error()
	case text == "":
		failure.Text = w.hidden.hide(err.Error())
	default:
		w.explain(failure)
	}
	return failure
}

// mendState is the hint for an invalid state. Losing the state loses nothing else,
// because VMs carry our marker.
const mendState = "restore the state from a backup, or move it elsewhere (with files as the backend it is terraform.tfstate " +
	"in the host's directory of the fleet): the next run imports the VMs that exist"

// explain replaces the engine's text where a clearer explanation exists.
func (w *Workspace) explain(failure *CommandError) {
	if fix, needed := w.needsProvider(failure.Text); needed && failure.Operation == downloading {
		failure.Text = brief(failure.Text) + ": " + fix
	} else if strings.Contains(failure.Text, "Unsupported state file format") {
		failure.Text = brief(failure.Text) + ": " + mendState
	} else if failure.Backend = w.unreachable(failure.Text); failure.Backend != "" {
		failure.Text = brief(failure.Text)
	}
}
