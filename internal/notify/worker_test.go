package notify_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/internal/notify"
)

// memory is a Memory in memory.
type memory struct {
	mu   sync.Mutex
	sent map[string]string
	err  error
}

func (m *memory) Load(_ context.Context, target string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent[target], m.err
}

func (m *memory) Save(_ context.Context, target, sent string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.sent[target] = sent
	}
	return m.err
}

func newMemory() *memory { return &memory{sent: map[string]string{}} }

// received are the messages that a target got.
type received struct {
	mu       sync.Mutex
	messages []*notify.Message
	at       []time.Duration
	fail     error
	start    time.Time
}

func (r *received) send(_ context.Context, _ string, m *notify.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = append(r.at, time.Since(r.start).Round(time.Second))
	if r.fail == nil {
		r.messages = append(r.messages, m)
	}
	return r.fail
}

func (r *received) setFail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

func config(targets ...notify.Target) notify.Config {
	if len(targets) == 0 {
		targets = []notify.Target{{Name: "ops", Type: notify.Webhook}}
	}
	return notify.Config{
		ClusterID: "prod", Targets: targets, Interval: time.Minute, Repeat: 4 * time.Hour,
		Redact: func(text string) string { return strings.ReplaceAll(text, "hunter22", "REDACTED") },
		Clock:  clock.RealClock{},
	}
}

// start runs a Notifier until the returned function is called.
func start(t *testing.T, config notify.Config) (n *notify.Notifier, got *received, stop func()) {
	t.Helper()
	got = &received{start: time.Now()}
	n = notify.New(config)
	n.Replace(got.send)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { n.Run(ctx) })
	return n, got, func() { cancel(); running.Wait() }
}

func failed(n int) notify.Notice {
	return notify.Notice{Kind: notify.Failed, Reason: "VMFailed", Object: "NodePool workers", Message: fmt.Sprintf("VM w-%d", n), Key: fmt.Sprint(n)}
}

// elapse lets time pass, and waits until the workers have done what is due.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestOneMessageForABurst checks that notifications of a burst are in one message, sorted by
// kind, and that the next message keeps the interval.
func TestOneMessageForABurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, got, stop := start(t, config())
		defer stop()
		n.Publish(failed(1))
		elapse(2 * time.Second)
		n.Publish(notify.Notice{Kind: notify.Waiting, Reason: "ScalePlanProposed", Object: "ScalePlan up-1", Message: "2 VMs", Key: "plan"})
		n.Publish(failed(2))
		elapse(4 * time.Second)
		if len(got.messages) != 1 || got.at[0] != 5*time.Second {
			t.Fatalf("got %d messages at %v, want one after 5 s", len(got.messages), got.at)
		}
		text := got.messages[0].Text
		for _, part := range []string{"numaform prod: 1 waiting, 2 failed\n", "\nWAITING\n- ", "ScalePlan up-1: ScalePlanProposed: 2 VMs", "\nFAILED\n- ", "VM w-1", "VM w-2"} {
			if !strings.Contains(text, part) {
				t.Errorf("the message lacks %q:\n%s", part, text)
			}
		}
		if strings.Index(text, "WAITING") > strings.Index(text, "FAILED") {
			t.Errorf("failed comes first:\n%s", text)
		}

		n.Publish(failed(3))
		elapse(50 * time.Second)
		if len(got.messages) != 1 {
			t.Errorf("a second message came after less than the interval: %v", got.at)
		}
		elapse(20 * time.Second)
		if len(got.messages) != 2 || got.at[1] != 65*time.Second {
			t.Errorf("got messages at %v, want the second a minute after the first", got.at)
		}
	})
}

// TestTenThousand checks that a storm of events neither blocks the caller, even while a target
// does not respond, nor fills a message or the memory.
func TestTenThousand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, got, stop := start(t, config())
		defer stop()
		hanging := make(chan struct{})
		n.Replace(func(ctx context.Context, target string, m *notify.Message) error {
			select {
			case <-hanging:
			case <-ctx.Done():
			}
			return got.send(ctx, target, m)
		})
		n.Publish(failed(-1))
		elapse(6 * time.Second) // the first message hangs
		before, long := time.Now(), strings.Repeat("x", 100_000)
		for i := range 10_000 {
			n.Publish(failed(i))
			n.Publish(notify.Notice{Kind: notify.Waiting, Reason: fmt.Sprintf("Reason%d", i), Message: long[i:], Key: fmt.Sprint("w", i)})
		}
		if passed := time.Since(before); passed > 0 {
			t.Errorf("publishing waited %s for a target", passed)
		}
		if keys := n.Keys(); keys > 2000 {
			t.Errorf("%d causes are pending", keys)
		}
		close(hanging)
		elapse(2 * time.Minute)
		if len(got.messages) != 2 {
			t.Fatalf("got %d messages, want 2", len(got.messages))
		}
		m := got.messages[1]
		total := len(m.Notices)
		for _, omitted := range m.Omitted {
			total += omitted.Count
		}
		if len(m.Notices) != 16 || len(m.Omitted) > 25 || total != 20_000 || len(m.Text) > 40_000 {
			t.Errorf("%d notifications, %d counts, %d in total, %d bytes", len(m.Notices), len(m.Omitted), total, len(m.Text))
		}
		if keys := n.Keys(); keys > 2000 {
			t.Errorf("%d causes are remembered", keys)
		}
		if !strings.Contains(m.Text, "Not listed: 19984 (") || !strings.Contains(m.Text, "9992 failed VMFailed") {
			t.Errorf("the message does not count what it omits:\n%s", m.Text[len(m.Text)-300:])
		}
	})
}

// TestKinds checks that a target gets only its kinds.
func TestKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, got, stop := start(t, config(notify.Target{Name: "ops", Type: notify.Webhook, Kinds: []string{"denied", "waiting"}}))
		defer stop()
		n.Publish(failed(1))
		elapse(time.Hour)
		if len(got.at) != 0 {
			t.Errorf("got %s", got.messages[0].Text)
		}
	})
}

// TestRepeat checks when a notification is repeated while its cause lasts, and that an equal
// text is sent once.
func TestRepeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, got, stop := start(t, config())
		defer stop()
		for range 30 { // 5 hours of events
			n.Publish(failed(1))
			other := failed(1)
			other.Key, other.Object = "pool", "NodeClaim w-1"
			n.Publish(other)
			elapse(10 * time.Minute)
		}
		if len(got.messages) != 2 || got.at[1] < 4*time.Hour || got.at[1] > 4*time.Hour+11*time.Minute {
			t.Errorf("got messages at %v, want two, four hours apart", got.at)
		}
		if notices := got.messages[0].Notices; len(notices) != 1 {
			t.Errorf("an equal text was sent twice: %v", notices)
		}
	})
}

// TestRestart checks that another process does not repeat what was sent, and that a forged
// memory suppresses nothing.
func TestRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := config()
		store := newMemory()
		c.Memory = store
		n, got, stop := start(t, c)
		n.Publish(failed(1))
		elapse(10 * time.Second)
		stop()
		if len(got.messages) != 1 {
			t.Fatalf("got messages at %v", got.at)
		}

		n, got, stop = start(t, c)
		n.Publish(failed(1))
		elapse(time.Minute)
		if len(got.at) != 0 {
			t.Errorf("the notification was repeated after the restart:\n%s", got.messages[0].Text)
		}
		n.Publish(failed(1))
		n.Publish(failed(2))
		elapse(time.Minute)
		stop()
		if len(got.messages) != 1 || len(got.messages[0].Notices) != 1 || got.messages[0].Notices[0].Message != "VM w-2" {
			t.Errorf("got %v, want only the new notification", got.messages)
		}

		key, _, _ := strings.Cut(store.sent["ops"], " ")
		for _, forged := range []string{
			fmt.Sprintf("%s %d\n", key, time.Now().Add(100*time.Hour).Unix()),
			key + " 99999999999999999999\n", key + "\n", "\x00 \n\n", strings.Repeat("x", 1<<20), key + " -1\n",
			strings.Repeat("0123456789abcdef 1\n", 5000),
		} {
			store.sent["ops"] = forged
			n, got, stop = start(t, c)
			n.Publish(failed(1))
			n.Publish(failed(2))
			elapse(time.Minute)
			stop()
			if len(got.messages) != 1 || len(got.messages[0].Notices) != 2 {
				t.Errorf("the memory %.40q suppressed a notification: %v", forged, got.messages)
			}
			if len(store.sent["ops"]) > 100 {
				t.Errorf("the memory has %d bytes", len(store.sent["ops"]))
			}
		}

		var problems []string
		c.Memorizing = func(_ string, err error) { problems = append(problems, err.Error()) }
		store.err = errors.New("no permission")
		n, got, stop = start(t, c)
		n.Publish(failed(9))
		elapse(time.Minute)
		stop()
		if len(got.messages) != 1 || len(problems) == 0 {
			t.Errorf("got %d messages and the problems %q, although only the memory is missing", len(got.messages), problems)
		}
	})
}

// TestDown checks the attempts to reach a target that is down, and that nothing is lost.
func TestDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var unsent []string
		c := config()
		c.Unsent = func(target string, err error) { unsent = append(unsent, target+": "+err.Error()) }
		n, got, stop := start(t, c)
		defer stop()
		got.setFail(errors.New("down"))
		n.Publish(failed(1))
		elapse(20 * time.Minute)
		n.Publish(failed(2))
		n.Publish(failed(1))
		elapse(40 * time.Minute)
		want := "[5s 2m5s 6m5s 14m5s 29m5s 44m5s 59m5s]"
		if fmt.Sprint(got.at) != want || len(unsent) != 1 {
			t.Errorf("attempts at %v, want %s; reported %q", got.at, want, unsent)
		}
		got.setFail(nil)
		elapse(15 * time.Minute)
		if len(got.messages) != 1 || len(got.messages[0].Notices) != 2 {
			t.Fatalf("got %v, want both notifications", got.messages)
		}
		if attempts := n.Attempts(); attempts[notify.Attempt{Type: notify.Webhook, Result: notify.Error}] != 7 ||
			attempts[notify.Attempt{Type: notify.Webhook, Result: notify.Success}] != 1 {
			t.Errorf("counted %v", attempts)
		}
		n.Publish(failed(3))
		elapse(time.Minute)
		if len(got.messages) != 2 {
			t.Error("the interval did not end after the target came back")
		}
	})
}

// TestOneTargetDown checks that a target that hangs does not delay another one.
func TestOneTargetDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, got, stop := start(t, config(notify.Target{Name: "hangs", Type: notify.Slack}, notify.Target{Name: "works", Type: notify.Webhook}))
		defer stop()
		var waited time.Duration
		n.Replace(func(ctx context.Context, target string, m *notify.Message) error {
			if target == "works" {
				return got.send(ctx, target, m)
			}
			begin := time.Now()
			<-ctx.Done()
			waited = time.Since(begin)
			return ctx.Err()
		})
		n.Publish(failed(1))
		elapse(50 * time.Second)
		if len(got.messages) != 1 || got.at[0] != 5*time.Second {
			t.Errorf("the other target got messages at %v", got.at)
		}
		if waited != 30*time.Second {
			t.Errorf("an attempt took %s", waited)
		}
	})
}

// TestFarewell checks that a process that stops sends what is pending, for at most 5 seconds.
func TestFarewell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, got, stop := start(t, config())
		n.Publish(failed(1))
		stop()
		if len(got.messages) != 1 || got.at[0] != 0 {
			t.Errorf("got messages at %v, want one at once", got.at)
		}

		n, _, stop = start(t, config())
		n.Replace(func(ctx context.Context, _ string, _ *notify.Message) error { <-ctx.Done(); return ctx.Err() })
		n.Publish(failed(1))
		begin := time.Now()
		stop()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("the stop took %s", took)
		}
	})
}
