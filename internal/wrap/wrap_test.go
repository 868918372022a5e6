package wrap_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/wrap"
)

func TestWords(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		words       []string
		separator   string
		first, rest int
		want        []string
	}{
		{name: "nothing", separator: " ", first: 9, rest: 9, want: []string{""}},
		{name: "spaces", words: strings.Fields("one two three"), separator: " ", first: 7, rest: 7, want: []string{"one two", "three"}},
		{name: "a shorter first line", words: strings.Fields("one two three"), separator: " ", first: 4, rest: 9, want: []string{"one", "two three"}},
		{name: "phrases", words: []string{"4 CPUs", "2 cores", "8 GiB"}, separator: ", ", first: 15, rest: 12, want: []string{"4 CPUs, 2 cores,", "8 GiB"}},
		{name: "a list of CPUs", words: []string{"on", "0-3,8-11,16-19"}, separator: " ", first: 9, rest: 9, want: []string{"on", "0-3,8-11,", "16-19"}},
		{name: "a list that fits in a line", words: []string{"CPUs", "0-3,8-11"}, separator: " ", first: 9, rest: 9, want: []string{"CPUs", "0-3,8-11"}},
		{name: "a list in phrases", words: []string{"0-3,8-11", "x"}, separator: ", ", first: 5, rest: 5, want: []string{"0-3,", "8-11,", "x"}},
		{name: "cells", words: []string{"[ab]", "[cd]", "[ef]"}, first: 8, rest: 8, want: []string{"[ab][cd]", "[ef]"}},
		{name: "a long word", words: []string{"a", "0123456789"}, separator: " ", first: 5, rest: 5, want: []string{"a", "0123456789"}},
		{name: "two columns", words: []string{"世界", "世界"}, separator: " ", first: 8, rest: 8, want: []string{"世界", "世界"}},
		{name: "two runes", words: []string{"e\u0301e\u0301", "e\u0301"}, separator: " ", first: 4, rest: 4, want: []string{"e\u0301e\u0301 e\u0301"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, wrap.Words(test.words, test.separator, test.first, test.rest)); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}
