// Package notify sends notifications about changes that wait, were denied or failed, to
// webhooks, Slack, Matrix and mail. It decides neither what is worth a notification nor
// anything about the fleet, and its caller never waits for it: notifications are dropped
// into a bounded list, and each target has a goroutine that sends them. Start at New,
// Notifier.Publish and Notifier.Run.
package notify

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Kind is why a notification is sent.
type Kind string

// The kinds, in the order of messages.
const (
	Waiting Kind = "waiting"
	Denied  Kind = "denied"
	Failed  Kind = "failed"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Waiting, Denied, Failed} }

// Notice is one notification.
type Notice struct {
	Kind Kind
	// Reason is the reason of the event, such as VMFailed.
	Reason string
	// Object is what it is about, such as "NodePool workers".
	Object string
	// Message is not trusted: it may contain names of pods and texts of other programs.
	Message string
	// Key identifies the cause. A notification with the same key is not sent again before
	// Config.Repeat.
	Key string
	// Time is set by Publish.
	Time time.Time
}

const (
	// gather is how long the first notification waits for others, to be in one message.
	gather = 5 * time.Second
	// sendTimeout limits one attempt to send a message, and farewell the last one, at the
	// end of the process.
	sendTimeout = 30 * time.Second
	farewell    = 5 * time.Second
	// longestPause is the maximum time between two attempts to reach a target.
	longestPause = 15 * time.Minute
	// maxOfKind and maxItems limit the notifications in a message. Others are counted.
	maxOfKind = 8
	maxItems  = 20
	// maxKeys limits the causes that are remembered for a target.
	maxKeys = 2000
	// maxField limits the fields of a notification in bytes, before they are sent.
	maxField = 2048
)

// Memory stores which notifications were sent, so that another process does not repeat them.
type Memory interface {
	// Load returns what Save stored for a target, or "".
	Load(ctx context.Context, target string) (string, error)
	Save(ctx context.Context, target, sent string) error
}

// Config configures a Notifier.
type Config struct {
	// ClusterID is the installation that messages name.
	ClusterID string
	Targets   []Target
	// Interval is the minimum time between two messages to a target.
	Interval time.Duration
	// Repeat is how long a notification is not repeated while its cause lasts.
	Repeat time.Duration
	// Redact removes secrets from a text.
	Redact func(string) string
	// Memory may be nil: then another process repeats notifications.
	Memory Memory
	// Unsent is called after the first attempt in a row that failed, and Memorizing after an
	// error of Memory. Their errors contain no secret.
	Unsent, Memorizing func(target string, err error)
	Clock              clock.Clock
}

// Result is the result of an attempt to send a message.
type Result string

// The results of attempts.
const (
	Success Result = "success"
	Error   Result = "error"
)

// Attempt is a kind of attempts that is counted.
type Attempt struct {
	Type   string
	Result Result
}

// Notifier sends notifications.
type Notifier struct {
	config  Config
	workers []*worker

	// mu guards attempts.
	mu       sync.Mutex
	attempts map[Attempt]int
}

// New returns a Notifier. It does no I/O.
func New(config Config) *Notifier {
	n := &Notifier{config: config, attempts: map[Attempt]int{}}
	for i := range config.Targets {
		target := &config.Targets[i]
		for _, result := range []Result{Success, Error} {
			n.attempts[Attempt{Type: target.Type, Result: result}] = 0
		}
		n.workers = append(n.workers, newWorker(n, target))
	}
	return n
}

// Publish hands a notification to the targets of its kind. It does no I/O and never waits
// for a target.
func (n *Notifier) Publish(notice Notice) {
	notice.Time = n.config.Clock.Now()
	notice.Reason, notice.Object = bounded(notice.Reason), bounded(notice.Object)
	notice.Message, notice.Key = bounded(notice.Message), hashed(notice.Key)
	for _, w := range n.workers {
		if w.target.wants(notice.Kind) {
			w.offer(notice)
		}
	}
}

// Run sends notifications until ctx ends, and then makes a last, short attempt.
func (n *Notifier) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, w := range n.workers {
		running.Go(func() { w.run(ctx) })
	}
	running.Wait()
}

// Attempts returns how many attempts there were since the start.
func (n *Notifier) Attempts() map[Attempt]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	counts := map[Attempt]int{}
	for attempt, count := range n.attempts {
		counts[attempt] = count
	}
	return counts
}

func (n *Notifier) count(attempt Attempt) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attempts[attempt]++
}

// wants reports whether a target gets notifications of a kind.
func (t *Target) wants(kind Kind) bool {
	return len(t.Kinds) == 0 || slices.Contains(t.Kinds, string(kind))
}

func bounded(text string) string {
	if len(text) > maxField {
		// A copy, so that the rest of a large text is not kept in memory.
		return string([]byte(text[:maxField]))
	}
	return text
}
