package topology_test

import (
	"fmt"
	"testing"

	"github.com/numaform/numaform/topology"
)

func TestNamed(t *testing.T) {
	t.Parallel()
	var forty, scattered []string
	for i := range 12 {
		scattered = append(scattered, fmt.Sprintf("n%d", 2*i))
	}
	for i := range 40 {
		forty = append(forty, fmt.Sprintf("lab/pve%02d", 40-i))
	}
	for _, test := range []struct {
		names []string
		want  string
	}{
		{nil, ""},
		{[]string{"lab"}, "lab"},
		{[]string{"lab/pve-2", "lab/pve-1"}, "lab/pve-1, lab/pve-2"},
		{[]string{"lab/pve-2", "lab/pve-1", "lab/pve-3", "lab/pve-2"}, "lab/pve-1…pve-3"},
		{[]string{"a-8", "a-9", "a-10", "a-12"}, "a-8…a-10, a-12"},
		{[]string{"a09", "a10", "a011"}, "a09, a10, a011"},
		{[]string{"x/a1", "x/a2", "x/a3", "y/a4", "y/a5", "y/a6"}, "x/a1…a3, y/a4…a6"},
		{[]string{"class big on lab/pve1", "class big on lab/pve2", "class big on lab/pve3"}, "class big on lab/pve1…pve3"},
		{[]string{"p1.example", "p2.example", "p3.example"}, "p1.example…p3.example"},
		{[]string{"", "/", "99999999999999999999"}, ", /, 99999999999999999999"},
		{forty, "lab/pve01…pve40"},
		{[]string{"a1", "a2", "a4"}, "a1, a2, a4"},
		{scattered, "n0, n2, n4, n6, n8, n10, n12, n14 and 4 more"},
		{append([]string{"n1"}, scattered...), "n0…n2, n4, n6, n8, n10, n12, n14, n16 and 3 more"},
	} {
		if got := topology.Named(test.names); got != test.want {
			t.Errorf("%q: got %q, want %q", test.names, got, test.want)
		}
	}
}
