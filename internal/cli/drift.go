package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

func newDrift(process Process) *cobra.Command {
	o := options{clusterless: true}
	var repair, detailed bool
	command := &cobra.Command{
		Use:   "drift",
		Short: "Compare every VM with its file, and say what to do where they differ",
		Long: "Compare every VM with its file, and say what to do where they differ. Proxmox is read in full, and nothing is changed. " +
			"With --repair, what an update in place takes back while the VM runs is planned, judged and applied as any change. " +
			"No VM is ever replaced.",
		RunE: func(command *cobra.Command, _ []string) error {
			left, err := runDrift(command.Context(), process, &o, repair)
			if err == nil && left && detailed {
				return exitError{ExitChanges}
			}
			return err
		},
	}
	o.register(command)
	o.registerApproval(command)
	flags := command.Flags()
	flags.BoolVar(&repair, "repair", false, "take back what an update in place can, after asking")
	flags.BoolVar(&detailed, "detailed-exitcode", false, "exit 0: no drift is left, 1: error, 2: drift")
	return command
}

// runDrift reports whether drift is left in the end.
func runDrift(ctx context.Context, process Process, o *options, repair bool) (left bool, err error) {
	if err := o.checkLive(); err != nil {
		return false, err
	}
	s, err := open(ctx, process, o)
	if err != nil {
		return false, err
	}
	d := &drifted{session: s}
	if d.shards, err = s.scaler.Drift(ctx, s.snapshot); err != nil {
		return false, err
	}
	if repair {
		err = d.repair(ctx, process, o)
	} else {
		err = d.print(process, o)
	}
	if err != nil {
		return false, err
	}
	return d.left(), d.failure()
}

// drifted is the drift of a fleet and what is done about it.
type drifted struct {
	session *session
	shards  []scaler.ShardDrift
	// plans take drift back; nil if none is to be.
	plans []scaler.ShardPlan
	// repaired are the VMs whose drift was taken back.
	repaired map[fleet.Key]bool
}

// repair takes back what an update in place can.
func (d *drifted) repair(ctx context.Context, process Process, o *options) error {
	change, err := d.session.scaler.ProposeRepair(ctx, d.session.snapshot, d.shards)
	if err != nil {
		return err
	}
	if change.Empty() {
		return d.print(process, o)
	}
	approve := func(plans []scaler.ShardPlan) (string, error) {
		d.plans = plans
		if err := d.print(process, o); err != nil {
			return "", err
		}
		p := &proposal{session: d.session, change: change, shards: plans}
		if err := p.failure(false); err != nil {
			return "", err
		}
		return o.confirm(ctx, process, plans)
	}
	results, err := d.session.scaler.Apply(ctx, change, approve)
	for _, result := range results {
		fmt.Fprintf(process.Stderr, "%s\n", result)
	}
	if err != nil {
		return err
	}
	d.repaired = map[fleet.Key]bool{}
	for _, vm := range change.Repaired {
		d.repaired[vm.Key] = true
	}
	return nil
}

// left reports whether drift is left. A VM that moved stays so, whatever else of it
// was repaired.
func (d *drifted) left() bool {
	for i := range d.shards {
		for _, vm := range d.shards[i].VMs {
			repaired := vm.Class == scaler.DriftRepairable && d.repaired[vm.VM.Key]
			if vm.Class != scaler.DriftNone && !repaired {
				return true
			}
		}
	}
	return false
}

// failure returns why hosts could not be compared, or nil. One that is down is told
// of, and stops nothing.
func (d *drifted) failure() error {
	var failures []error
	for i := range d.shards {
		var down *scaler.HostDownError
		if err := d.shards[i].Err; err != nil && !errors.As(err, &down) {
			failures = append(failures, fmt.Errorf("shard %s: %w", d.shards[i].Shard, err))
		}
	}
	return errors.Join(failures...)
}

// driftReport is what drift prints, and with -o json the whole of it.
type driftReport struct {
	// Classes counts the VMs of each class.
	Classes map[scaler.DriftClass]int `json:"classes"`
	VMs     []vmDriftReport           `json:"vms"`
	// Errors are the hosts that could not be compared.
	Errors []shardReport `json:"errors,omitempty"`
	// Repair is what takes drift back.
	Repair []shardReport `json:"repair,omitempty"`
}

type vmDriftReport struct {
	Name        string                   `json:"name"`
	VMID        fleet.VMID               `json:"vmid"`
	Host        topology.HostID          `json:"host"`
	Now         topology.HostID          `json:"now_on,omitzero"`
	Class       scaler.DriftClass        `json:"class"`
	Repairable  bool                     `json:"repairable,omitempty"`
	Differences []scaler.DriftDifference `json:"differences,omitempty"`
	Notes       []string                 `json:"notes,omitempty"`
	Advice      string                   `json:"advice,omitempty"`
}

func (d *drifted) report() driftReport {
	r := driftReport{Classes: map[scaler.DriftClass]int{}, VMs: []vmDriftReport{}}
	for i := range d.shards {
		for _, vm := range d.shards[i].VMs {
			r.Classes[vm.Class]++
			r.VMs = append(r.VMs, vmDriftReport{
				Name: vm.VM.Name, VMID: vm.VM.VMID, Host: vm.VM.Host, Now: vm.Host, Class: vm.Class, Repairable: vm.Repairable,
				Differences: vm.Differences, Notes: vm.Notes, Advice: vm.Advice,
			})
		}
		if err := d.shards[i].Err; err != nil {
			r.Errors = append(r.Errors, shardReport{Host: d.shards[i].Shard, Error: err.Error()})
		}
	}
	for i := range d.plans {
		r.Repair = append(r.Repair, shardLine(&d.plans[i]))
	}
	return r
}

// print writes the report to stdout.
func (d *drifted) print(process Process, o *options) error {
	r := d.report()
	if o.output == "json" {
		encoder := json.NewEncoder(process.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	w := &printer{w: process.Stdout}
	w.heading("VMs and their files")
	w.printf("  %s\n", r.summary())
	w.drift(r.VMs)
	for _, shard := range r.Errors {
		w.printf("  %s cannot be compared: %s\n", shard.Host, shard.Error)
	}
	w.shards(r.Repair)
	return w.err
}

// summary counts the VMs of each class.
func (r *driftReport) summary() string {
	if len(r.VMs) == 0 {
		return "the fleet has no VMs"
	}
	var counts []string
	for _, class := range scaler.DriftClasses() {
		if n := r.Classes[class]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, class))
		}
	}
	return strings.Join(counts, ", ")
}

// drift prints a line for each VM, and below it what is to be said of it.
func (w *printer) drift(vms []vmDriftReport) {
	var lines strings.Builder
	table := tabwriter.NewWriter(&lines, 2, 8, 2, ' ', 0)
	for _, vm := range vms {
		fmt.Fprintf(table, "  %s\t%d\t%s\t%s\n", vm.Name, vm.VMID, vm.Host, vm.Class)
	}
	if err := table.Flush(); w.err == nil {
		w.err = err
	}
	for i, line := range strings.Split(strings.TrimSuffix(lines.String(), "\n"), "\n") {
		if i < len(vms) {
			w.printf("%s\n", line)
			w.details(&vms[i])
		}
	}
}

func (w *printer) details(vm *vmDriftReport) {
	for _, difference := range vm.Differences {
		w.printf("      %s: file says %s, Proxmox has %s\n", difference.Attribute, difference.File, difference.Proxmox)
	}
	for _, note := range vm.Notes {
		w.printf("      %s\n", note)
	}
	if vm.Advice != "" {
		w.printf("      → %s\n", vm.Advice)
	}
}
