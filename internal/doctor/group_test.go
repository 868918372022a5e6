package doctor_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/topology"
)

// TestGrouped checks that findings that differ only in their place and in values are
// printed once, and findings with different sentences or fixes separately.
func TestGrouped(t *testing.T) {
	t.Parallel()
	var report doctor.Report
	for i := range 40 {
		host := fmt.Sprintf("homelab/pve-%d", i+1)
		running, ages := topology.Sentence("agent 1.2.3 is running, last report %s ago", topology.Elapsed(time.Duration(20-i%20)*time.Second))
		report = append(report,
			doctor.Finding{Check: "agent", Status: doctor.Fail, Where: host, What: "no agent", Fix: "install it"},
			doctor.Finding{Check: "agent", Status: doctor.OK, Where: host, What: running, Values: ages},
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

// TestGroupedValues checks that findings that differ only in their values become one with
// ranges, whatever the sentence contains besides them.
func TestGroupedValues(t *testing.T) {
	t.Parallel()
	mib := func(n int64) topology.Value { return topology.Amount(n, "MiB") }
	free := func(values ...topology.Value) doctor.Finding {
		return finding("storage \"6 MiB\" has %s free of %s", values...)
	}
	template := func(vmid int, gib int64) doctor.Finding {
		return finding("debian (%s, %s on local)", topology.VMIDValue(vmid), topology.Amount(gib, "GiB"))
	}
	last := func(age time.Duration) doctor.Finding { return finding("last report %s ago", topology.Elapsed(age)) }
	since := func(age time.Duration) doctor.Finding {
		at := time.Date(2126, 1, 2, 3, 4, 5, 0, time.UTC).Add(-age)
		return finding("nothing for %s, since %s", topology.Elapsed(age), topology.Moment(at))
	}
	cpus := func(cpus, nodes int) doctor.Finding {
		return finding("%s, %s", topology.Counted(cpus, "CPU"), topology.Counted(nodes, "NUMA node"))
	}
	for _, test := range []struct {
		name string
		in   []doctor.Finding
		out  []string
	}{
		{
			"amounts",
			[]doctor.Finding{free(mib(6), mib(20)), free(mib(10), mib(20)), free(mib(9), mib(20))},
			[]string{"storage \"6 MiB\" has 6…10 MiB free of 20 MiB"},
		},
		{"units", []doctor.Finding{free(mib(900), mib(1)), free(topology.Amount(2, "GiB"), mib(1))}, []string{"storage \"6 MiB\" has 900 MiB free of 1 MiB", "storage \"6 MiB\" has 2 GiB free of 1 MiB"}},
		{"numbers", []doctor.Finding{cpus(64, 2), cpus(32, 1)}, []string{"32…64 CPUs, 1…2 NUMA nodes"}},
		{"ages", []doctor.Finding{last(47 * time.Minute), last(3 * time.Hour), last(50 * time.Hour), last(20 * time.Second)}, []string{"last report 20s…2d ago"}},
		{"equal ages", []doctor.Finding{last(3 * time.Hour), last(3*time.Hour + time.Minute)}, []string{"last report 3h ago"}},
		{"times", []doctor.Finding{since(3 * time.Hour), since(4 * time.Hour)}, []string{"nothing for 3h…4h, since 2126-01-01T23:04:05Z…2126-01-02T00:04:05Z"}},
		{"VMIDs", []doctor.Finding{template(9001, 8), template(9002, 12), template(9004, 8)}, []string{"debian (VMIDs 9001, 9002, 9004, 8…12 GiB on local)"}},
		{"consecutive VMIDs", []doctor.Finding{template(9001, 8), template(9002, 8), template(9003, 8)}, []string{"debian (VMIDs 9001…9003, 8 GiB on local)"}},
		{"one finding", []doctor.Finding{template(9001, 8)}, []string{"debian (VMID 9001, 8 GiB on local)"}},
		{"no values", []doctor.Finding{{What: "has 6 MiB free"}, {What: "has 9 MiB free"}}, []string{"has 6 MiB free", "has 9 MiB free"}},
		{"other text", []doctor.Finding{finding("VMID 1 is VMID 7"), finding("%s is VMID 7", topology.VMIDValue(1))}, []string{"VMID 1 is VMID 7", "VMID 1 is VMID 7"}},
		{"longer text", []doctor.Finding{last(time.Second), last(2 * time.Second), {What: last(time.Second).What + "; more", Values: last(time.Second).Values}}, []string{"last report 1s…2s ago", "last report 1s ago; more"}},
	} {
		var got []string
		for _, finding := range doctor.Report(test.in).Grouped() {
			got = append(got, finding.What)
		}
		if diff := cmp.Diff(test.out, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// finding returns a finding with a topology.Sentence.
func finding(format string, values ...topology.Value) doctor.Finding {
	args := make([]any, len(values))
	for i, value := range values {
		args[i] = value
	}
	what, found := topology.Sentence(format, args...)
	return doctor.Finding{What: what, Values: found}
}
