package cli

import (
	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/conformance"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/topology"
)

// recordedSnapshot is the document that topology.Snapshot.Print returns.
type recordedSnapshot struct {
	Format int `json:"format"`
	topology.Snapshot
}

// Output is the JSON output of a command.
type Output struct {
	// Name is the name of the schema, and Command the command that prints it.
	Name, Command string
	// Type is a value of the output's Go type.
	Type any
}

// Outputs returns the outputs with a published schema.
func Outputs() []Output {
	return []Output{
		{"status", "numaform status -o json", status.Report{}},
		{"get-vms", "numaform get vms -o json", []status.VM{}},
		{"get-hosts", "numaform get hosts -o json", []status.Host{}},
		{"get-plans", "numaform get plans -o json", []v1alpha1.ScalePlan{}},
		{"get-plan", "numaform get plans NAME -o json", v1alpha1.ScalePlan{}},
		{"doctor", "numaform doctor -o json", doctorReport{}},
		{"plan", "numaform plan, apply, remove and undo with -o json", report{}},
		{"drift", "numaform drift -o json", driftReport{}},
		{"history", "numaform history -o json", []historyEntry{}},
		{"explain", "numaform explain -o json", scheduling.Explanation{}},
		{"topology", "numaform topology -o json", recordedSnapshot{}},
		{"topology-collect", "numaform topology collect -o json", topology.CollectedFile{}},
		{"conformance", "numaform conformance --report FILE.json", conformance.Report{}},
	}
}

// Data returns the values that commands print as JSON, by the name of their schema.
func (v *Views) Data(findings doctor.Report) map[string]any {
	r := v.report()
	return map[string]any{
		"status": r, "get-vms": r.VMs, "get-hosts": r.Hosts, "history": v.History, "doctor": newDoctorReport(findings),
	}
}
