package topology_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numaform/numaform/topology"
)

func TestParseCPUSet(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text, want, err string
	}{
		{name: "empty", text: "", want: ""},
		{name: "one", text: "7", want: "7"},
		{name: "range and ids", text: "0-3,8,10-11", want: "0-3,8,10-11"},
		{name: "any order, twice", text: "8,0-3,2-4", want: "0-4,8"},
		{name: "blanks and a trailing comma, as Proxmox allows", text: " 0-3 , 8 ,", want: "0-3,8"},
		{name: "leading zeros", text: "007-08", want: "7-8"},
		{name: "as large as the example of Proxmox", text: "0-9999", want: "0-9999"},
		{name: "largest", text: "65535", want: "65535"},
		{name: "line break of a sysfs file", text: "0-5\n", want: "0-5"},
		{name: "above the largest", text: "0-65536", err: `"65536" is too large: must be at most 65535`},
		{name: "hostile", text: "0-99999999999", err: "is too large"},
		{name: "beyond any integer", text: "99999999999999999999999", err: "is too large"},
		{name: "backwards", text: "3-1", err: "write 1-3"},
		{name: "negative", text: "-1", err: `"" is not a number`},
		{name: "open range", text: "1-", err: "is not a number"},
		{name: "hole", text: "0,,1", err: "is not a number"},
		{name: "comma at the start", text: ",1", err: "is not a number"},
		{name: "hexadecimal", text: "0x1", err: `"0x1" is not a number: use a list such as 0-3,8`},
		{name: "blank within", text: "0 - 3", err: "is not a number"},
		{name: "control character", text: "1\x1b[2J", err: `"1\x1b[2J" is not a number`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			set, err := topology.ParseCPUSet(test.text)
			checkError(t, err, test.err)
			if got := set.String(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestParseCPUSetShortensUntrustedText(t *testing.T) {
	t.Parallel()
	_, err := topology.ParseCPUSet(strings.Repeat("x", 1<<20))
	if err == nil || len(err.Error()) > 400 {
		t.Errorf("got an error of %d bytes, want a short one", len(err.Error()))
	}
}

func TestParseCPUSetOfManyRangesIsCheap(t *testing.T) {
	t.Parallel()
	set, err := topology.ParseCPUSet(strings.Repeat("0-65535,", 100_000))
	if err != nil || set.Size() != 65536 {
		t.Errorf("got %d ids and error %v, want 65536", set.Size(), err)
	}
}

func TestCPUSetRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := topology.CPUs(rapid.SliceOf(rapid.IntRange(0, topology.MaxCPU)).Draw(t, "ids")...)
		text, err := want.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var got topology.CPUSet
		if err := got.UnmarshalText(text); err != nil || !got.Equal(want) {
			t.Fatalf("%s came back as %s, error %v", want, got, err)
		}
	})
}

func TestCPUSetAlgebra(t *testing.T) {
	t.Parallel()
	a, b := topology.CPUs(0, 1, 2, 5), topology.CPUs(2, 3)
	for _, test := range []struct{ what, got, want string }{
		{"union", a.Union(b).String(), "0-3,5"},
		{"intersection", a.Intersection(b).String(), "2"},
		{"difference", a.Difference(b).String(), "0-1,5"},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %s, want %s", test.what, test.got, test.want)
		}
	}
	if a.IsSubsetOf(b) || !topology.CPUs(2).IsSubsetOf(b) || !a.Contains(5) || a.Contains(3) || a.IsZero() {
		t.Error("a relation between sets is wrong")
	}
}

func FuzzParseCPUSet(f *testing.F) {
	for _, seed := range []string{"", "0-3,8", " 1 ,", "0-99999999999", "3-1", "0,,1", "０-３"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := topology.ParseCPUSet(text)
		if err != nil {
			return
		}
		again, err := topology.ParseCPUSet(set.String())
		if err != nil || !again.Equal(set) {
			t.Fatalf("%q parsed to %s, which parsed to %s, error %v", text, set, again, err)
		}
		if list := set.List(); len(list) > 0 && (list[0] < 0 || list[len(list)-1] > topology.MaxCPU) {
			t.Fatalf("%q parsed to %s, outside 0 to %d", text, set, topology.MaxCPU)
		}
	})
}

// checkError checks that an error contains want, or is nil if want is empty.
func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("unexpected error: %v", err)
	case want != "" && err == nil:
		t.Fatalf("no error, want one with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Fatalf("error is\n%v\nwant it to contain\n%s", err, want)
	}
}
