package cli //nolint:testpackage // questions have no exported form

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
)

// TestNoAnswer checks the error of a question whose input ends, on a line of its own.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	process := Process{Stdin: strings.NewReader(""), Stderr: &out, asking: new(atomic.Bool)}
	yes, err := confirmed(t.Context(), process, "Apply this change?")
	if want := "the answer is missing, because the input ended"; yes || err == nil || err.Error() != want {
		t.Errorf("%t, %v, want %q", yes, err, want)
	}
	if !strings.HasSuffix(out.String(), "\n") {
		t.Errorf("the error would follow the question on its line: %q", out.String())
	}
}
