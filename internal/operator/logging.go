package operator

import (
	"context"
	"regexp"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"sigs.k8s.io/karpenter/pkg/events"
)

// NewLogger wraps base for the controller. At debug level, it logs errors that only follow
// from a canceled context. It removes the currency from Karpenter's relative prices.
func NewLogger(base logr.Logger) logr.Logger {
	inner := base.GetSink()
	return base.WithSink(&sink{LogSink: inner, full: func() logr.LogSink { return inner }})
}

// sink adds fields and names only when it logs a line, because every reconciliation has its
// own fields, but few log anything.
type sink struct {
	// LogSink is the base without fields and names; it has the same level.
	logr.LogSink
	// full returns the base with fields and names.
	full func() logr.LogSink
}

// Info logs a message with relative prices.
func (s *sink) Info(level int, message string, pairs ...any) {
	s.full().Info(level, relative(message), relatives(pairs)...)
}

// Error logs an error. If the error only follows from a canceled context, Error logs it as
// an informational message, and only at debug level.
func (s *sink) Error(err error, message string, pairs ...any) {
	if !stopped(err, message) {
		s.full().Error(err, relative(message), relatives(pairs)...)
		return
	}
	if s.Enabled(1) {
		if err != nil {
			pairs = append(pairs, "error", err.Error())
		}
		s.full().Info(1, message, pairs...)
	}
}

// WithValues returns a sink with additional fields.
func (s *sink) WithValues(pairs ...any) logr.LogSink {
	return s.with(func() logr.LogSink { return s.full().WithValues(relatives(pairs)...) })
}

// WithName returns a sink with an additional name.
func (s *sink) WithName(name string) logr.LogSink {
	return s.with(func() logr.LogSink { return s.full().WithName(name) })
}

func (s *sink) with(full func() logr.LogSink) *sink {
	return &sink{LogSink: s.LogSink, full: sync.OnceValue(full)}
}

// stopped reports whether an error is only the consequence of a canceled context: of a
// stop, a pause, or a lost lease. client-go logs some of them only as text, and a manager
// of controller-runtime v0.23.1 logs the end of its lease after each stop.
func stopped(err error, message string) bool {
	text := message
	if err != nil {
		text = err.Error()
	}
	if text == "leader election lost" {
		return message == "error received after stop sequence was engaged"
	}
	for line := range strings.SplitSeq(text, "\n") { // joined errors
		if !strings.Contains(line, context.Canceled.Error()) {
			return false
		}
	}
	return true
}

// money matches savings in texts of Karpenter v1.14.1: the difference of two prices, which
// in Proxmox are relative and have no currency.
var money = regexp.MustCompile(`\(savings: \$(-?[0-9.]+)\)`)

// relative returns a text without currency.
func relative(text string) string { return money.ReplaceAllString(text, "(relative savings: $1)") }

// relatives returns the fields of a log line without currency.
func relatives(pairs []any) []any {
	for i, value := range pairs {
		text, ok := value.(string)
		if !ok || !money.MatchString(text) {
			continue
		}
		changed := append([]any(nil), pairs...)
		for j := i; j < len(changed); j++ {
			if text, ok := changed[j].(string); ok {
				changed[j] = relative(text)
			}
		}
		return changed
	}
	return pairs
}

// relativeEvents publishes events without currency.
type relativeEvents struct{ events.Recorder }

// Publish publishes events.
func (r relativeEvents) Publish(published ...events.Event) {
	for _, event := range published {
		event.Message = relative(event.Message)
		r.Recorder.Publish(event)
	}
}
