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
	"unicode"
)

// ErrStalePlan reports that the state has changed since the plan was made.
var ErrStalePlan = errors.New("the saved plan is stale because the state has changed: plan again")

// ErrHostLost is the cause of a context canceled because the host went down: Apply then
// ends the provider without waiting for its running tasks.
var ErrHostLost = errors.New("the host is lost")

// ErrBusy reports that another numaform process uses the directory.
var ErrBusy = errors.New("another numaform process uses this directory: wait until it ends, or stop it")

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
	// killed is set if the engine was killed by a signal, so that its lock may remain.
	killed bool
}

// Error names the operation, the directory and the engine's reasons.
func (e *CommandError) Error() string {
	reason := e.Text
	if errors.Is(e.cause, context.Canceled) {
		return fmt.Sprintf("%s %s: interrupted", e.Operation, e.Dir)
	}
	if reason == "" && e.cause != nil {
		reason = e.cause.Error()
	}
	if e.Backend == "" {
		return fmt.Sprintf("%s %s: %s", e.Operation, e.Dir, reason)
	}
	return fmt.Sprintf("%s %s: the %s backend of the state does not respond correctly: %s: %s; check that it runs, that it is reachable from here, "+
		"and that its address and the credential in the environment are correct; then run numaform again", e.Operation, e.Dir, e.Backend, reason, e.done())
}

// done describes the possible result of a command whose backend did not respond. A
// command that held the lock may have completed and failed only to release it.
func (e *CommandError) done() string {
	kept := filepath.Join(e.Dir, erroredState)
	if _, err := os.Stat(kept); err == nil {
		return "the result is in " + kept + " and the next run saves it first"
	}
	reads := []string{"initializing", downloading, "planning", "reading plan of", "reading the state of", "starting the engine in", "taking the lock of"}
	if slices.Contains(reads, e.Operation) || strings.Contains(e.Text, "acquiring the state lock") {
		return "nothing was changed"
	}
	return "the next run determines what was done"
}

// Unwrap returns the context's cause if the operation was canceled, or ErrStalePlan, or
// nil.
func (e *CommandError) Unwrap() error { return e.cause }

// Holder is the known state of a lock's holder.
type Holder string

// The states of a lock's holder.
const (
	// HolderUnknown means that the holder may be alive. Only a person may break the lock.
	HolderUnknown Holder = "unknown"
	// HolderGone means that the holder is provably dead: by host and time, it is the engine
	// of a failed run in this directory, or Config.Gone reports that no engine on its host
	// is alive.
	HolderGone Holder = "gone"
)

// LockedError reports that another client holds the state's lock.
type LockedError struct {
	LockInfo
	Path   string
	Holder Holder
	// Proof is the reason why the holder is considered dead, and the remaining
	// uncertainty.
	Proof string
	Dir   string
	// Lease is the name of the Kubernetes Lease if Unlock cannot break the lock, or else
	// empty.
	Lease string
	// Command is Config.UnlockCommand.
	Command string
}

// Error names the lock, its holder, its time and the fix.
func (e *LockedError) Error() string {
	since := e.Since()
	if e.ID == "" {
		return fmt.Sprintf("state of %s: locked by %s since %s for %s: wait until it is unlocked; the lock ends with its holder's connection",
			e.Dir, e.Who, since, e.Operation)
	}
	release := ""
	if e.Command != "" {
		release = fmt.Sprintf("; if the holder is certainly dead, run `%s %s`", e.Command, e.ID)
	}
	return fmt.Sprintf("state of %s: locked by %s since %s for %s (lock %s, holder %s): wait until it is unlocked%s",
		e.Dir, e.Who, since, e.Operation, e.ID, e.Holder, release)
}

// Since returns when the holder acquired the lock, as RFC 3339, or "an unknown time".
func (e *LockedError) Since() string {
	if e.Created.IsZero() {
		return "an unknown time"
	}
	return e.Created.UTC().Format(time.RFC3339)
}

// lockField matches a line of the engine's description of a lock.
var lockField = regexp.MustCompile(`(?m)^[\s│|]*(ID|Path|Operation|Who|Created):[ \t]+(.*?)\s*$`)

// lockAccount matches the text before the engine's description of a lock; the second
// alternative is from init in Kubernetes.
var lockAccount = regexp.MustCompile(`acquiring the state lock|already locked by another`)

// heldID matches the holder's ID in a description that is otherwise about the requester.
// The engine wraps long lines.
var heldID = regexp.MustCompile(`already locked:[\s│|]*ID=(\S+)`)

// lockTime is the engine's time format: Go's Time.String.
const lockTime = "2006-01-02 15:04:05.999999999 -0700 MST"

// parseLock parses the engine's description of the lock's holder. It returns nil if the
// engine's text describes no holder, because the engine failed for another reason.
func parseLock(text string) *LockedError {
	at := lockAccount.FindStringIndex(text)
	if at == nil {
		return nil
	}
	account := text[at[1]:]
	e := &LockedError{LockInfo: LockInfo{Who: "someone", Operation: "an operation"}, Holder: HolderUnknown}
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
	// Without the ID of a holder, the text is about a backend that could not be reached.
	if e.ID == "" {
		return nil
	}
	return e
}

// failure converts an error of terraform-exec and the engine's output to a *LockedError or
// a *CommandError. It ends the provider, because the engine may have asked the provider to
// stop: such a provider must not be called again. It does not wrap the engine's error,
// whose text may contain secrets.
func (w *Workspace) failure(ctx context.Context, operation string, err error, said ...string) error {
	if p := w.provider; p != nil {
		died := p.died()
		w.dismiss()
		if died && !errors.Is(context.Cause(ctx), ErrHostLost) {
			said = append(said, "the provider died"+p.stderr.panic())
		}
	}
	said = slices.DeleteFunc(said, func(s string) bool { return s == "" })
	text := w.hidden.Replace(strings.TrimSpace(strings.Join(said, "\n")))
	if locked := parseLock(text); locked != nil && ctx.Err() == nil {
		w.complete(locked)
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
		failure.Text = w.hidden.Replace(err.Error())
	case operation == downloading && noProvider.MatchString(text):
		failure.Text = aroundCause.ReplaceAllString(brief(text), "") + ": " + w.providerHint()
	case invalidState.MatchString(text):
		failure.Text = brief(text) + ": " + restoreState
	default:
		if failure.Backend = w.unreachable(text); failure.Backend != "" {
			failure.Text = brief(text)
		}
	}
	return failure
}

// invalidState matches the engine's errors about the content of a state.
var invalidState = regexp.MustCompile(`Unsupported state file format|(Invalid|Duplicate) [a-z ]+ in state\b|(field conflict in|field missing|configuration address in) state\b`)

// restoreState is the hint for an invalid state. Losing the state loses nothing else,
// because VMs carry numaform's marker.
const restoreState = "restore the state from a backup, or move it elsewhere (with the local backend, it is terraform.tfstate " +
	"in the host's directory of the fleet): the next run imports the VMs that exist"

// troubled matches the engine's errors about a server that does not respond, or responds
// incorrectly.
var troubled = regexp.MustCompile(`connection refused|connection reset|no such host|no route to host|network is unreachable|` +
	`i/o timeout|TLS handshake timeout|deadline exceeded|Client\.Timeout|giving up after|bad connection|broken pipe|: EOF\b|` +
	`response code:? [45]\d\d|StatusCode: [45]\d\d|is (starting up|shutting down)|failed to verify certificate|` +
	`authentication failed|Unauthorized|[Ff]orbidden|AccessDenied|ServiceUnavailable`)

// aboutResource matches the text that the engine adds to errors that are not the
// backend's: the place in the configuration, or the resource.
var aboutResource = regexp.MustCompile(`(?m)^[\s│]*(with (module|provider|proxmox|data)[.\[_]|on \S+ line \d+)|^(module\.|[a-z_]+\.)\S+: |provider packages?`)

// aboutState matches the start of the engine's error about a state that it could not
// save, lock or release.
var aboutState = regexp.MustCompile(`Failed to save state|Error acquiring the state lock|Error releasing the state lock`)

// advice matches the start of the engine's advice for interactive use.
var advice = regexp.MustCompile(`\s*(Failed to persist state to backend:|(OpenTofu|Terraform) (acquires a (state )?lock|is trying to read))`)

// unreachable returns the backend type if the engine's output reports that the backend
// does not respond, and "" otherwise.
func (w *Workspace) unreachable(text string) string {
	said, _, _ := strings.Cut(text, "\n\nError:")
	if at := aboutState.FindStringIndex(text); at != nil {
		said = text[at[0]:]
	} else if aboutResource.MatchString(said) {
		return ""
	}
	if !troubled.MatchString(strings.Join(strings.Fields(said), " ")) {
		return ""
	}
	if w.root == nil || w.root.backend == "local" {
		return ""
	}
	return w.root.backend
}

// brief returns the engine's text as one line, without the advice at its end.
func brief(text string) string {
	if at := advice.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	return strings.TrimPrefix(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("│╷╵", r) }), " "), "Error: ")
}

// noProvider matches the engine's errors about a provider that it cannot get.
var noProvider = regexp.MustCompile(`(resolve|query available|retrieve the list of available|install) (provider|versions)|required_providers`)

// aroundCause matches what the engine writes before and after the cause in an error that
// noProvider matches.
var aroundCause = regexp.MustCompile(`^Failed to (query available|resolve) provider packages .*?: |(\. All versions|\. To see which modules| To see which modules).*$`)

// providerHint describes how to get a provider that the engine cannot download.
func (w *Workspace) providerHint() string {
	if dir := w.config.PluginDir; dir != "" {
		return fmt.Sprintf("engine.plugin_dir %s does not contain the provider: fill it with `%s providers mirror %s` on a machine that can reach the registry, or correct the path",
			dir, w.config.Engine.Name(), dir)
	}
	return fmt.Sprintf("the provider's registry cannot be reached from here: set engine.plugin_dir in numaform.yaml to a directory that "+
		"`%s providers mirror DIR` filled on a machine that can reach it, or set HTTPS_PROXY to a proxy that can", w.config.Engine.Name())
}
