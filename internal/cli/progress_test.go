package cli //nolint:testpackage // steps has no exported form

import (
	"bytes"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/term"
)

// TestSteps checks that a step shows how many hosts are done, and that nothing is drawn
// after its last host, even if the count of an earlier host arrives late.
func TestSteps(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	s := &steps{screen: term.NewScreen(&out, term.Terminal{Width: 80, Live: true}, clock)}
	s.count("planning hosts", 0, 40)
	clock.SetTime(time.Unix(5, 0))
	s.count("planning hosts", 1, 40)
	s.count("planning hosts", 40, 40)
	drawn := out.String()
	s.count("planning hosts", 39, 40)
	clock.SetTime(time.Unix(9, 0))
	if !strings.Contains(drawn, "planning hosts: 1 of 40, 5s") {
		t.Errorf("drawn: %q", drawn)
	}
	if out.String() != drawn {
		t.Errorf("drawn after the last host: %q", strings.TrimPrefix(out.String(), drawn))
	}
	s.count("applying", 0, 0)
	if s.current != nil {
		t.Error("a step without hosts was started")
	}
}
