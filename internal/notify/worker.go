package notify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// hashed returns a short key of constant length.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// reason identifies notifications that a message only counts.
type reason struct {
	Kind   Kind
	Reason string
}

// batch is the content of one message.
type batch struct {
	notices []Notice
	// omitted counts the notifications that do not fit into the message.
	omitted map[reason]int
	// keys are the keys of all notifications, also of the omitted ones.
	keys map[string]bool
}

func newBatch() *batch { return &batch{omitted: map[reason]int{}, keys: map[string]bool{}} }

func (b *batch) empty() bool { return len(b.notices) == 0 && len(b.omitted) == 0 }

// has reports whether the batch contains the notification, or one with the same text: a
// failure of a VM is an event of its NodeClaim and of its NodePool. It then adds the key.
func (b *batch) has(notice Notice) bool {
	known := b.keys[notice.Key] || slices.ContainsFunc(b.notices, func(other Notice) bool {
		return other.Kind == notice.Kind && other.Reason == notice.Reason && other.Message == notice.Message
	})
	if known && len(b.keys) < maxKeys {
		b.keys[notice.Key] = true
	}
	return known
}

// add adds a notification, or counts it if the batch is full.
func (b *batch) add(notice Notice) {
	if len(b.keys) < maxKeys {
		b.keys[notice.Key] = true
	}
	ofKind := 0
	for i := range b.notices {
		if b.notices[i].Kind == notice.Kind {
			ofKind++
		}
	}
	if ofKind < maxOfKind && len(b.notices) < maxItems {
		b.notices = append(b.notices, notice)
		return
	}
	at := reason{Kind: notice.Kind, Reason: notice.Reason}
	if _, counted := b.omitted[at]; !counted && len(b.omitted) >= maxItems {
		at.Reason = "" // reasons are few, unless a caller invents them
	}
	b.omitted[at]++
}

// worker sends the notifications of one target.
type worker struct {
	notifier *Notifier
	target   *Target
	// send sends a message to the target.
	send func(ctx context.Context, m *Message) error
	// wake has an element if notifications may have to be sent.
	wake chan struct{}

	// mu guards the fields below. It is never held during I/O.
	mu sync.Mutex
	// pending waits to be sent since the time since; sending is being sent.
	pending, sending *batch
	since            time.Time
	// sent is when each notification was sent.
	sent map[string]time.Time

	// The fields below belong to the goroutine of run: the time of the last attempt, and
	// the number of attempts in a row that failed.
	last     time.Time
	failures int
}

func newWorker(n *Notifier, target *Target) *worker {
	return &worker{
		notifier: n, target: target, wake: make(chan struct{}, 1),
		send:    func(ctx context.Context, m *Message) error { return target.Send(ctx, m, n.config.Redact) },
		pending: newBatch(), sending: newBatch(), sent: map[string]time.Time{},
	}
}

// offer adds a notification, unless it is pending or was sent recently.
func (w *worker) offer(notice Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.recent(notice.Key, notice.Time) || w.pending.has(notice) || w.sending.has(notice) {
		return
	}
	if w.pending.empty() {
		w.since = notice.Time
	}
	w.pending.add(notice)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) recent(key string, now time.Time) bool {
	at, sent := w.sent[key]
	return sent && now.Sub(at) < w.notifier.config.Repeat
}

// run sends notifications until ctx ends.
func (w *worker) run(ctx context.Context) {
	for w.wait(ctx) {
		w.flush(ctx, sendTimeout)
	}
	w.flush(context.WithoutCancel(ctx), farewell)
}

// wait waits until notifications are due. It returns false if ctx ends before.
func (w *worker) wait(ctx context.Context) bool {
	for {
		w.mu.Lock()
		idle, due := w.pending.empty(), w.since.Add(gather)
		w.mu.Unlock()
		if next := w.last.Add(w.pause()); next.After(due) {
			due = next
		}
		now := w.notifier.config.Clock.Now()
		if !idle && !due.After(now) {
			return ctx.Err() == nil
		}
		var timer <-chan time.Time
		if !idle {
			t := w.notifier.config.Clock.NewTimer(due.Sub(now))
			defer t.Stop() // at most one per wake-up
			timer = t.C()
		}
		select {
		case <-w.wake:
		case <-timer:
		case <-ctx.Done():
			return false
		}
	}
}

// pause is the minimum time after the last attempt.
func (w *worker) pause() time.Duration {
	if w.last.IsZero() {
		return 0
	}
	pause := w.notifier.config.Interval
	for range w.failures {
		if pause *= 2; pause >= longestPause {
			return max(longestPause, w.notifier.config.Interval)
		}
	}
	return pause
}

// flush sends what is pending. What could not be sent is pending again.
func (w *worker) flush(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w.mu.Lock()
	idle := w.pending.empty()
	w.mu.Unlock()
	if idle {
		return
	}
	w.remember(ctx)
	sending := w.take()
	if sending.empty() {
		return
	}

	config := &w.notifier.config
	w.last = config.Clock.Now()
	err := w.send(ctx, newMessage(config, sending))
	if err != nil {
		w.putBack()
		w.notifier.count(Attempt{Type: w.target.Type, Result: Error})
		if w.failures++; w.failures == 1 && config.Unsent != nil {
			config.Unsent(w.target.Name, err)
		}
		return
	}
	w.failures = 0
	w.notifier.count(Attempt{Type: w.target.Type, Result: Success})
	stored := w.done(config.Clock.Now())
	if config.Memory != nil {
		w.memorizing(config.Memory.Save(ctx, w.target.Name, stored))
	}
}

// remember adds what another process has sent.
func (w *worker) remember(ctx context.Context) {
	memory := w.notifier.config.Memory
	if memory == nil {
		return
	}
	stored, err := memory.Load(ctx, w.target.Name)
	w.memorizing(err)
	now := w.notifier.config.Clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, at := range parseSent(stored) {
		// A time in the future would suppress notifications for too long.
		if at.After(w.sent[key]) && !at.After(now) {
			w.sent[key] = at
		}
	}
}

func (w *worker) memorizing(err error) {
	if err != nil && w.notifier.config.Memorizing != nil {
		w.notifier.config.Memorizing(w.target.Name, err)
	}
}

// take returns what is pending and was not sent recently.
func (w *worker) take() *batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.notifier.config.Clock.Now()
	w.pending.notices = slices.DeleteFunc(w.pending.notices, func(notice Notice) bool { return w.recent(notice.Key, now) })
	w.sending, w.pending = w.pending, newBatch()
	return w.sending
}

// putBack makes what could not be sent pending again, before newer notifications.
func (w *worker) putBack() {
	w.mu.Lock()
	defer w.mu.Unlock()
	newer := w.pending
	w.pending, w.sending = w.sending, newBatch()
	for _, notice := range newer.notices {
		w.pending.add(notice)
	}
	for at, count := range newer.omitted {
		w.pending.omitted[at] += count
	}
	for key := range newer.keys {
		if len(w.pending.keys) < maxKeys {
			w.pending.keys[key] = true
		}
	}
}

// done records that all notifications in sending were sent, and returns the record.
func (w *worker) done(now time.Time) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.sending.keys {
		w.sent[key] = now
	}
	w.sending = newBatch()
	maps.DeleteFunc(w.sent, func(_ string, at time.Time) bool { return now.Sub(at) >= w.notifier.config.Repeat })
	keys := slices.SortedFunc(maps.Keys(w.sent), func(a, b string) int {
		return cmp.Or(w.sent[b].Compare(w.sent[a]), cmp.Compare(a, b))
	})
	for _, key := range keys[min(len(keys), maxKeys):] {
		delete(w.sent, key) // the oldest
	}
	var record strings.Builder
	for _, key := range keys[:min(len(keys), maxKeys)] {
		fmt.Fprintf(&record, "%s %d\n", key, w.sent[key].Unix())
	}
	return record.String()
}

// parseSent reads a record. Others may have written it, so it ignores invalid lines.
func parseSent(record string) map[string]time.Time {
	sent := map[string]time.Time{}
	for line := range strings.Lines(record) {
		key, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		seconds, err := strconv.ParseInt(text, 10, 64)
		if len(key) != len(hashed("")) || err != nil {
			continue
		}
		sent[key] = time.Unix(seconds, 0)
	}
	return sent
}
