package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

func newDrift(process Process) *cobra.Command {
	o := driftOptions{options: options{clusterless: true}}
	command := &cobra.Command{
		Use:   "drift",
		Short: "Compare every VM with its file, and say what to do where they differ",
		Long: "Compare every VM with its file, and say what to do where they differ. Proxmox is read in full, and nothing is changed. " +
			"With --repair, what an update in place takes back while the VM runs is planned, judged and applied as any change. " +
			"No VM is ever replaced. With --every, it is done again and again until it is interrupted, and what fails is only told of.",
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if o.every > 0 {
				return repeated(command.Context(), process, &o)
			}
			left, err := runDrift(command.Context(), process, &o)
			if err == nil && left && o.detailed {
				return exitError{ExitChanges}
			}
			return err
		},
	}
	o.registerChange(command)
	flags := command.Flags()
	flags.BoolVar(&o.repair, "repair", false, "take back what an update in place can, after asking")
	flags.DurationVar(&o.every, "every", 0, "look again this often, such as 15m, until interrupted; 0 looks once")
	flags.BoolVar(&o.detailed, "detailed-exitcode", false, "exit 0: no drift is left, 1: error, 2: drift; with --every, of the last run that ended")
	return command
}

// driftOptions are the flags of drift.
type driftOptions struct {
	options
	repair   bool
	every    time.Duration
	detailed bool
}

// leastEvery is the minimum interval between complete readings of Proxmox.
const leastEvery = 10 * time.Second

func (o *driftOptions) check() error {
	switch {
	case o.every != 0 && o.every < leastEvery:
		return usageError{fmt.Errorf("--every %s: want at least %s, or 0 to look once", o.every, leastEvery)}
	case o.dryRun && !o.repair:
		return usageError{errors.New("--dry-run is for --repair: without it drift changes nothing anyway")}
	case o.every != 0 && o.repair && !o.autoApprove && !o.dryRun:
		return usageError{errors.New("--every with --repair asks nobody: add --auto-approve, or leave --repair out")}
	}
	return o.checkLive()
}

// repeated checks for drift until ctx ends, which is not a failure: failures have been
// reported.
func repeated(ctx context.Context, process Process, o *driftOptions) error {
	process.Stdin = strings.NewReader("") // no one is present to answer
	last := repeat(ctx, process.Stderr, o.every, func(ctx context.Context) (bool, error) { return runDrift(ctx, process, o) })
	switch {
	case o.detailed && last.err != nil:
		return exitError{ExitFailed}
	case o.detailed && last.left:
		return exitError{ExitChanges}
	}
	return nil
}

// looked is the result of one check for drift.
type looked struct {
	left bool
	err  error
}

// repeat checks at once, and then at each tick until ctx ends; if a check takes longer
// than that, the next one follows directly. It reports failures, and returns the result
// of the last complete check, if there is one.
func repeat(ctx context.Context, stderr io.Writer, every time.Duration, look func(context.Context) (bool, error)) looked {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var last looked
	for first := true; ; first = false {
		now := looked{}
		if now.left, now.err = look(ctx); now.err != nil {
			fmt.Fprintf(stderr, "numaform: %v\n", now.err)
		}
		if interrupted := now.err != nil && ctx.Err() != nil; first || !interrupted {
			last = now
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return last
		}
	}
}

// runDrift reports whether drift remains.
func runDrift(ctx context.Context, process Process, o *driftOptions) (left bool, err error) {
	s, err := open(ctx, process, &o.options)
	if err != nil {
		return false, err
	}
	d := &drifted{session: s}
	if d.shards, err = s.scaler.Drift(ctx, s.snapshot); err != nil {
		return false, err
	}
	if o.repair {
		err = d.repair(ctx, process, &o.options)
	} else {
		err = d.print(process, &o.options)
	}
	if err != nil {
		return false, err
	}
	return d.left(), d.failure()
}

// drifted is the drift of a fleet, with its repair.
type drifted struct {
	session *session
	shards  []scaler.ShardDrift
	// plans revert drift; nil without a repair.
	plans []scaler.ShardPlan
	// repaired are the VMs whose drift was reverted.
	repaired map[fleet.Key]bool
}

// repair reverts what an update in place can, except on hosts with unfinished work.
func (d *drifted) repair(ctx context.Context, process Process, o *options) error {
	change, held, err := d.session.scaler.ProposeRepair(ctx, d.session.snapshot, d.shards)
	if err != nil {
		return err
	}
	if change.Empty() {
		return errors.Join(d.print(process, o), held)
	}
	if o.dryRun {
		if d.plans, err = d.session.scaler.Plan(ctx, change); err != nil {
			return err
		}
		fmt.Fprintln(process.Stderr, "Nothing was changed: this was a dry run.")
		return errors.Join(d.print(process, o), held)
	}
	results, err := d.session.scaler.Apply(ctx, change, func(plans []scaler.ShardPlan) (string, error) {
		d.plans = plans
		if err := d.print(process, o); err != nil {
			return "", err
		}
		return d.approve(ctx, process, o, change)
	})
	for _, result := range results {
		fmt.Fprintf(process.Stderr, "%s\n", result)
	}
	if err = errors.Join(err, held); err != nil {
		return err
	}
	d.repaired = map[fleet.Key]bool{}
	for _, vm := range change.Repaired {
		d.repaired[vm.Key] = true
	}
	return nil
}

// approve evaluates the plans of a repair. A host with unfinished work does not stop the
// others: its error is in the result.
func (d *drifted) approve(ctx context.Context, process Process, o *options, change *scaler.Change) (string, error) {
	able := slices.DeleteFunc(slices.Clone(d.plans), func(plan scaler.ShardPlan) bool {
		var unfinished *scaler.UnfinishedError
		return errors.As(plan.Err, &unfinished)
	})
	p := &proposal{session: d.session, change: change, shards: able}
	if err := p.failure(false); err != nil {
		return "", err
	}
	if len(able) == 0 {
		return "", nil
	}
	return o.confirm(ctx, process, able)
}

// left reports whether drift remains. A moved VM remains drifted, even if its other drift
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

// failure returns why hosts could not be compared, or nil. A host that is down is
// reported, and is not a failure.
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

// driftReport is the output of drift, complete with -o json.
type driftReport struct {
	// Classes counts the VMs in each class.
	Classes map[scaler.DriftClass]int `json:"classes"`
	VMs     []vmDriftReport           `json:"vms"`
	// Errors are the hosts that could not be compared.
	Errors []shardReport `json:"errors,omitempty"`
	// Repair is the plan that reverts drift.
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

// summary returns the number of VMs in each class.
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

// drift prints a line for each VM, with its details below.
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
