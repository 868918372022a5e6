package audit

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzCanonical compares the canonical form with what json.Marshal writes.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"b": 1, "a": [ ], "a!": {"z": null, "y": [true, {"x": -1.50E+3}]}, "a": ["<&>\u2028é\\\"\u0061", 12345678901234567890]}`,
		"{\"\xff\": \"\xff\", \"\\ud800\": \"\x7f\"}", ` [ 1 , "a" , { } ] `, `{"A":1,"a":2,"a":3,"\u0061":{"b":1}}`, `""`, `0`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.UseNumber()
		var value any
		if !json.Valid(content) || decoder.Decode(&value) != nil {
			return
		}
		want, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if got := (&canonicalizer{in: content}).value(); !bytes.Equal(got, want) {
			t.Errorf("%q becomes %q, want %q", content, got, want)
		}
	})
}
