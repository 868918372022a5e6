package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
)

// TestLoggerIsCalm checks which errors are logged at debug level only, and that no text
// presents relative prices as money.
func TestLoggerIsCalm(t *testing.T) {
	t.Parallel()
	canceled := fmt.Errorf("listing pods: %w", context.Canceled)
	for name, test := range map[string]struct {
		log  func(logr.Logger)
		want string
	}{
		"error":   {func(l logr.Logger) { l.Error(errors.New("broken"), "failed") }, `"logger"="x" "msg"="failed" "error"="broken"`},
		"stopped": {func(l logr.Logger) { l.Error(canceled, "Reconciler error") }, ""},
		"stopped early": {func(l logr.Logger) {
			l.Error(fmt.Errorf("%w (%w)", scaler.ErrNotRead, context.Canceled), "Reconciler error")
		}, ""},
		"stopped as text": {func(l logr.Logger) { l.Error(nil, "Failed to update lock: context canceled") }, ""},
		"lease": {func(l logr.Logger) {
			l.Error(errors.New("leader election lost"), "error received after stop sequence was engaged")
		}, ""},
		"lost lease": {func(l logr.Logger) { l.Error(errors.New("leader election lost"), "problem running manager") }, `"error"="leader election lost"`},
		"stopped and more": {
			func(l logr.Logger) { l.Error(errors.Join(canceled, errors.New("state not saved")), "failed") }, "state not saved",
		},
		"savings": {
			func(l logr.Logger) {
				l.WithValues("command", "delete: [a] (savings: $0.65)").Info("disrupting node(s)", "n", 1)
			},
			`"command"="delete: [a] (relative savings: 0.65)"`,
		},
		"savings in a field": {func(l logr.Logger) { l.Info("x", "n", 1, "command", "(savings: $-1.20)") }, "(relative savings: -1.20)"},
		"another dollar":     {func(l logr.Logger) { l.Info("x", "command", "$HOME") }, "$HOME"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []string
			test.log(operator.NewLogger(funcr.New(func(prefix, args string) { lines = append(lines, `"logger"="`+prefix+`" `+args) }, funcr.Options{})).WithName("x"))
			got := strings.Join(lines, "\n")
			if !strings.Contains(got, test.want) || test.want == "" && got != "" {
				t.Errorf("logged %s, want %s", got, test.want)
			}
		})
	}
}

// TestDebugLogHasStops checks that the debug log contains canceled operations.
func TestDebugLogHasStops(t *testing.T) {
	t.Parallel()
	var lines []string
	logger := operator.NewLogger(funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: 1}))
	logger.Error(context.Canceled, "Reconciler error", "NodePool", "general")
	if len(lines) != 1 || !strings.Contains(lines[0], `"error"="context canceled"`) || !strings.Contains(lines[0], `"NodePool"="general"`) {
		t.Errorf("logged %q", lines)
	}
}

// counting counts the fields that are added to a sink.
type counting struct {
	logr.LogSink

	fields *int
}

func (c counting) WithValues(pairs ...any) logr.LogSink {
	*c.fields += len(pairs) / 2
	return counting{c.LogSink.WithValues(pairs...), c.fields}
}

func (c counting) WithName(name string) logr.LogSink {
	return counting{c.LogSink.WithName(name), c.fields}
}

// TestFieldsCostNothingWithoutALine checks that fields are added only for lines that are
// logged, and only once.
func TestFieldsCostNothingWithoutALine(t *testing.T) {
	t.Parallel()
	var lines []string
	base := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	fields := 0
	logger := operator.NewLogger(base.WithSink(counting{base.GetSink(), &fields})).WithValues("a", 1).WithName("x").WithValues("b", 2)
	logger.V(1).Info("not logged")
	if fields != 0 {
		t.Errorf("%d fields were added without a line", fields)
	}
	logger.Info("first")
	logger.Info("second")
	if fields != 2 || len(lines) != 2 || !strings.Contains(lines[1], `"a"=1 "b"=2`) {
		t.Errorf("%d fields were added, want 2; lines %q", fields, lines)
	}
}

type published []events.Event

func (p *published) Publish(events ...events.Event) { *p = append(*p, events...) }

func TestEventsHaveNoCurrency(t *testing.T) {
	t.Parallel()
	var got published
	operator.RelativeEvents(&got).Publish(events.Event{Message: "Consolidation candidate: delete (savings: $0.65)"}, events.Event{Message: "costs $1"})
	if len(got) != 2 || got[0].Message != "Consolidation candidate: delete (relative savings: 0.65)" || got[1].Message != "costs $1" {
		t.Errorf("published %+v", got)
	}
}
