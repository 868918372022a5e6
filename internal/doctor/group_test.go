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

// TestGroupedValues checks that only amounts, times and durations become ranges, and that
// sentences about different objects remain apart.
func TestGroupedValues(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		in, out []string
	}{
		{"amounts", []string{"has 6 MiB free", "has 10 MiB free", "has 9 MiB free"}, []string{"has 6…10 MiB free"}},
		{"several amounts", []string{"64 CPUs, 2 NUMA nodes, by agent", "32 CPUs, 4 NUMA nodes, by agent"}, []string{"32…64 CPUs, 2…4 NUMA nodes, by agent"}},
		{"other units", []string{"has 900 MiB free", "has 2 GiB free"}, []string{"has 900 MiB free", "has 2 GiB free"}},
		{"ages", []string{"last report 47m ago", "last report 3h ago", "last report 2d ago", "last report 20s ago"}, []string{"last report 20s…2d ago"}},
		{
			"times",
			[]string{"nothing for 3h, since 2126-01-02T00:04:05Z", "nothing for 4h, since 2126-01-01T23:04:05Z"},
			[]string{"nothing for 3h…4h, since 2126-01-01T23:04:05Z…2126-01-02T00:04:05Z"},
		},
		{"fractions", []string{"pins 2 of 3 VMs", "pins 4 of 4 VMs"}, []string{"pins 2 of 3 VMs", "pins 4 of 4 VMs"}},
		{"VMIDs of templates", []string{"debian (VMID 9001, 8 GiB on local)", "debian (VMID 9002, 12 GiB on local)", "debian (VMID 9004, 8 GiB on local)"}, []string{"debian (VMIDs 9001, 9002, 9004, 8…12 GiB on local)"}},
		{"consecutive VMIDs", []string{"debian (VMID 9001)", "debian (VMID 9002)", "debian (VMID 9003)"}, []string{"debian (VMIDs 9001…9003)"}},
		{"two VMIDs", []string{"VMID 1 is in use by VMID 7", "VMID 7 is in use by VMID 1"}, []string{"VMID 1 is in use by VMID 7", "VMID 7 is in use by VMID 1"}},
		{"a VMID in a command", []string{"(VMID 1) is not usable: qm set 1 --agent 1", "(VMID 2) is not usable: qm set 2 --agent 1"}, []string{"(VMID 1) is not usable: qm set 1 --agent 1", "(VMID 2) is not usable: qm set 2 --agent 1"}},
		{"VMs", []string{"VM 101 is not a template yet", "VM 103 is not a template yet"}, []string{"VM 101 is not a template yet", "VM 103 is not a template yet"}},
		{"lists of CPUs", []string{"pins no VM to CPUs 0-3", "pins no VM to CPUs 4-7"}, []string{"pins no VM to CPUs 0-3", "pins no VM to CPUs 4-7"}},
		{"ports", []string{"cannot connect to port 8006", "cannot connect to port 443"}, []string{"cannot connect to port 8006", "cannot connect to port 443"}},
		{"addresses", []string{"dial tcp 10.0.0.1:8006: timeout", "dial tcp 10.0.0.9:8006: timeout"}, []string{"dial tcp 10.0.0.1:8006: timeout", "dial tcp 10.0.0.9:8006: timeout"}},
		{"statuses", []string{"401 unauthorized", "403 unauthorized"}, []string{"401 unauthorized", "403 unauthorized"}},
		{"versions", []string{"agent 1.2.3 is running", "agent 1.10.0 is running"}, []string{"agent 1.2.3 is running", "agent 1.10.0 is running"}},
		{"fingerprints", []string{"SHA-256 12:AB", "SHA-256 34:CD"}, []string{"SHA-256 12:AB", "SHA-256 34:CD"}},
		{"names", []string{"VM 5d-old is stopped", "VM 6d-old is stopped"}, []string{"VM 5d-old is stopped", "VM 6d-old is stopped"}},
	} {
		var report doctor.Report
		for _, what := range test.in {
			report = append(report, doctor.Finding{What: what})
		}
		var got []string
		for _, finding := range report.Grouped() {
			got = append(got, finding.What)
		}
		if diff := cmp.Diff(test.out, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}
