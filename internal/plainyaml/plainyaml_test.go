package plainyaml_test

import (
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/plainyaml"
)

// bomb returns a YAML text in which, through aliases, each line expands to nine times as
// many values as the line before.
func bomb(lines int) string {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < lines; i++ {
		alias := fmt.Sprintf("*a%d, ", i-1)
		text += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(alias, 8), i-1)
	}
	return text
}

func keys(count int) string {
	var text strings.Builder
	for i := range count {
		fmt.Fprintf(&text, "k%d: 1\n", i)
	}
	return text.String()
}

// TestCheck checks that Check rejects texts that take minutes or gigabytes to decode, and
// accepts others, which the test then decodes.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"plain":             {"a: 1\nb: {c: [1, 2]}\n", ""},
		"aliases":           {"a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n", ""},
		"no YAML":           {"a: [", ""},
		"nothing":           {"", ""},
		"many keys":         {keys(5000), ""},
		"a few aliases":     {bomb(5), ""},
		"long":              {strings.Repeat("#", plainyaml.MaxBytes+1), "must have at most 1048576"},
		"one key":           {strings.Repeat("k: 1\n", plainyaml.MaxBytes/5), `line 2: duplicate key k, already on line 1`},
		"one key in a line": {"{" + strings.Repeat("a:,", 64<<10) + "}", `duplicate key a:, already on line 1`},
		"in the second":     {"a: 1\n---\nb: 1\nb: 1\n", `line 4: duplicate key b, already on line 3`},
		"too many keys":     {keys(50_000), "too many keys"},
		"bomb":              {bomb(9), "expands to more than 1048576 values"},
		"itself":            {"a: &a [*a]\n", "refers to itself"},
		"deep":              {strings.Repeat("[", 9000) + strings.Repeat("]", 9000), ""},
		"deeper":            {strings.Repeat("[", 512<<10), ""},
		"sequences":         {strings.Repeat("- ", 512<<10), ""},
		"comments":          {strings.Repeat("#\n", 512<<10), ""},
		"anchors":           {strings.Repeat("&a ", 256<<10), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := plainyaml.Check([]byte(tt.text))
			if (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			if err == nil {
				var read any
				_ = yaml.Unmarshal([]byte(tt.text), &read)
			}
		})
	}
}
