package doctor_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/doctor"
)

// TestGrouped checks that findings that differ only in their place and in values are
// printed once, and findings with different sentences or fixes separately.
func TestGrouped(t *testing.T) {
	t.Parallel()
	var report doctor.Report
	for i := range 40 {
		host := fmt.Sprintf("homelab/pve-%d", i+1)
		report = append(report,
			doctor.Finding{Check: "agent", Status: doctor.Fail, Where: host, What: "no agent", Fix: "install it"},
			doctor.Finding{Check: "agent", Status: doctor.OK, Where: host, What: fmt.Sprintf("agent 1.2.3 is running, last report %ds ago", 20-i%20)},
			doctor.Finding{Check: "cpu", Status: doctor.Warn, Where: host, What: "no model", Fix: "set cpu of " + host})
	}
	report = append(
		report,
		doctor.Finding{Check: "host", Status: doctor.OK, Where: "b", What: "is online"},
		doctor.Finding{Check: "host", Status: doctor.OK, Where: "a", What: "is online"},
		doctor.Finding{Check: "host", Status: doctor.Warn, Where: "c", What: "is online"},
		doctor.Finding{Check: "lock", Status: doctor.OK, What: "is free"},
	)
	before := slices.Clone(report)

	var got []string
	for _, finding := range report.Grouped() {
		if finding.Check != "cpu" {
			got = append(got, string(finding.Status)+" "+finding.Line())
		}
	}
	want := []string{
		"fail homelab/pve-1…pve-40 (40): no agent: install it",
		"ok homelab/pve-1…pve-40 (40): agent 1.2.3 is running, last report 1s…20s ago",
		"ok a, b: is online",
		"warn c: is online",
		"ok is free",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := len(report.Grouped()); n != len(want)+40 {
		t.Errorf("%d lines: want %d, 40 of them for the CPUs", n, len(want)+40)
	}
	if diff := cmp.Diff(before, report); diff != "" {
		t.Errorf("the report itself changed:\n%s", diff)
	}
}

// TestGroupedPlaces checks the lists of places.
func TestGroupedPlaces(t *testing.T) {
	t.Parallel()
	var scattered []string
	for i := range 20 {
		scattered = append(scattered, fmt.Sprintf("pve%02d", 3*i))
	}
	for _, test := range []struct {
		places []string
		want   string
	}{
		{[]string{""}, ""},
		{[]string{"b", "a", "b"}, "a, b"},
		{[]string{"pve1", "pve2", "pve4"}, "pve1, pve2, pve4"},
		{[]string{"pve1", "pve2", "pve3", "pve9"}, "pve1…pve3, pve9 (4)"},
		{[]string{"class a on pve1", "class a on pve2", "class b on pve1", "class b on pve2", "class b on pve3"}, "class a on pve1, pve2; class b on pve1…pve3 (5)"},
		{[]string{"class a on pve1", "pve2"}, "class a on pve1; pve2"},
		{scattered, "pve00, pve03, pve06, pve09, pve12, pve15, pve18, pve21 and 12 more"},
	} {
		var report doctor.Report
		for _, place := range test.places {
			report = append(report, doctor.Finding{Where: place})
		}
		if got := report.Grouped(); len(got) != 1 || got[0].Where != test.want {
			t.Errorf("%q: got %v, want %q", test.places, got, test.want)
		}
	}
}
