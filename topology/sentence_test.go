package topology_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

// TestSentence checks the text of a sentence, and the places of its values.
func TestSentence(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		format string
		args   []any
		want   string
		values []string
	}{
		{"is online", nil, "is online", nil},
		{"%q on %d", []any{"a%s", 7}, `"a%s" on 7`, nil},
		{"%s: %s, %s of %q", []any{topology.Elapsed(time.Minute), "1 CPU", topology.Counted(1, "CPU"), "x"}, `60s: 1 CPU, 1 CPU of "x"`, []string{"60s", "1 CPU"}},
		{"%s%s", []any{topology.Amount(3, "MiB"), topology.VMIDValue(9)}, "3 MiBVMID 9", []string{"3 MiB", "VMID 9"}},
		{"%s since %s", []any{"a\x00b", topology.Moment(time.Unix(0, 0).UTC())}, "a\x00b since 1970-01-01T00:00:00Z", nil},
	} {
		text, values := topology.Sentence(test.format, test.args...)
		if text != test.want {
			t.Errorf("%q: got %q, want %q", test.format, text, test.want)
		}
		var found []string
		for _, value := range values {
			found = append(found, text[value.At:value.At+len(value.Text)])
		}
		if diff := cmp.Diff(test.values, found); diff != "" {
			t.Errorf("%q: values (-want +got):\n%s", test.format, diff)
		}
	}
}
