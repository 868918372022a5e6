package doctor_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/doctor"
)

// TestGroupedByPlace checks that a finding about many hosts is printed once, and that
// findings about a few places, or with different fixes, are printed separately.
func TestGroupedByPlace(t *testing.T) {
	var report doctor.Report
	for i := range 40 {
		host := fmt.Sprintf("homelab/pve-%d", i+1)
		report = append(report,
			doctor.Finding{Check: "agent", Status: doctor.Fail, Where: host, What: "no agent", Fix: "install it"},
			doctor.Finding{Check: "cpu", Status: doctor.Warn, Where: host, What: "no model", Fix: "set cpu of " + host})
	}
	for _, host := range []string{"a", "b", "c"} {
		report = append(report, doctor.Finding{Check: "host", Status: doctor.OK, Where: host, What: "is online"})
	}

	grouped := report.Grouped()
	if len(grouped) != 1+40+3 {
		t.Fatalf("%d lines: want one for the agents, 40 for the CPUs, 3 for the hosts", len(grouped))
	}
	want := "40 places: homelab/pve-1 … homelab/pve-40: no agent: install it"
	if diff := cmp.Diff(want, grouped[0].Line()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(report[80:], grouped[41:]); diff != "" {
		t.Error(diff)
	}
	if report[0].Where != "homelab/pve-1" || len(report) != 83 {
		t.Error("the report itself changed")
	}
}
