package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
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
		Short: "Compare every VM with its file, and advise how to resolve differences",
		Long: "Compare every VM with its file, and advise how to resolve differences. The command reads all of Proxmox. Without --repair, it changes nothing. " +
			"With --repair, it reverts differences that an update in place can revert while the VM runs, as a planned and checked change. " +
			"It never replaces a VM. With --every, it repeats until it is interrupted; a failure is reported and does not end it.",
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			var remains bool
			var err error
			if o.every > 0 {
				// No user is present to answer questions. repeat reports failures itself, and
				// an interrupt is not a failure.
				process.Stdin = strings.NewReader("")
				remains, err = repeat(command.Context(), process.Stderr, o.every, func(ctx context.Context) (bool, error) { return runDrift(ctx, process, &o) })
				if err != nil && o.detailed {
					return exitError{ExitFailed}
				}
				err = nil
			} else {
				remains, err = runDrift(command.Context(), process, &o)
			}
			if err == nil && remains && o.detailed {
				return exitError{ExitChanges}
			}
			return err
		},
	}
	flags := command.Flags()
	o.registerChange(flags)
	flags.BoolVar(&o.repair, "repair", false, "revert differences by updates in place, after confirmation")
	flags.DurationVar(&o.every, "every", 0, "repeat at this interval, such as 15m, until interrupted; 0 runs once")
	flags.BoolVar(&o.detailed, "detailed-exitcode", false, "exit with 0 if no drift remains, 1 on an error, 2 if drift remains; with --every, the code is that of the last complete run")
	return command
}

// driftOptions are the flags of drift.
type driftOptions struct {
	options
	repair   bool
	every    time.Duration
	detailed bool
}

// leastEvery is the minimum interval for reading all of Proxmox.
const leastEvery = 10 * time.Second

func (o *driftOptions) check() error {
	switch {
	case o.every != 0 && o.every < leastEvery:
		return usageError{fmt.Errorf("--every %s: must be at least %s, or 0 to run once", o.every, leastEvery)}
	case o.dryRun && !o.repair:
		return usageError{errors.New("--dry-run requires --repair: without --repair, drift changes nothing")}
	case o.every != 0 && o.repair && !o.autoApprove && !o.dryRun:
		return usageError{errors.New("--every with --repair cannot ask for confirmation: add --auto-approve, or remove --repair")}
	}
	return o.checkLive()
}

// repeat checks immediately and then at each tick until ctx is canceled. After a check that
// takes longer than the interval, the next check follows immediately. repeat reports failures
// and returns the result of the last check that was not interrupted, or of the first check.
func repeat(ctx context.Context, stderr io.Writer, every time.Duration, check func(context.Context) (bool, error)) (remains bool, err error) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for first := true; ; first = false {
		found, failure := check(ctx)
		if failure != nil {
			fmt.Fprintf(stderr, "numaform: %v\n", failure)
		}
		if interrupted := failure != nil && ctx.Err() != nil; first || !interrupted {
			remains, err = found, failure
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return remains, err
		}
	}
}

// runDrift compares the VMs with their files once, reverts drift with --repair, and reports
// whether drift remains.
func runDrift(ctx context.Context, process Process, o *driftOptions) (remains bool, err error) {
	o.applies = o.repair && !o.dryRun
	s, err := open(ctx, process, &o.options)
	if err != nil {
		return false, err
	}
	d := &drifted{session: s}
	if d.hosts, err = s.scaler.Drift(ctx, s.snapshot); err != nil {
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
	return d.remains(), d.failure()
}

// drifted is the drift of a fleet and its repair.
type drifted struct {
	session *session
	hosts   []scaler.RootDrift
	// plans revert drift; nil without a repair.
	plans []scaler.RootPlan
	// repaired contains the keys of the VMs whose drift was reverted.
	repaired map[fleet.Key]bool
}

// repair reverts drift by updates in place, except on hosts with unfinished changes.
func (d *drifted) repair(ctx context.Context, process Process, o *options) error {
	change, unfinished, err := d.session.scaler.ProposeRepair(ctx, d.session.snapshot, d.hosts)
	if err != nil {
		return err
	}
	if change.Empty() {
		return errors.Join(d.print(process, o), unfinished)
	}
	if o.dryRun {
		if d.plans, err = d.session.scaler.Plan(ctx, change); err != nil {
			return err
		}
		fmt.Fprintln(process.Stderr, "Dry run: nothing was changed.")
		return errors.Join(d.print(process, o), unfinished)
	}
	err = applied(ctx, process, d.session.scaler, change, func(plans []scaler.RootPlan) (string, error) {
		d.plans = plans
		if err := d.print(process, o); err != nil {
			return "", err
		}
		// Hosts with unfinished changes do not stop the repair: the result contains their errors.
		repairable := slices.DeleteFunc(slices.Clone(plans), func(plan scaler.RootPlan) bool {
			var unfinished *scaler.UnfinishedError
			return errors.As(plan.Err, &unfinished)
		})
		p := &proposal{session: d.session, change: change}
		if err := p.setPlans(ctx, repairable); err != nil {
			return "", err
		}
		if err := p.failure(false); err != nil || len(repairable) == 0 {
			return "", err
		}
		return p.confirm(ctx, process, o)
	})
	if err = errors.Join(err, unfinished); err != nil {
		return err
	}
	d.repaired = map[fleet.Key]bool{}
	for _, vm := range change.Repaired {
		d.repaired[vm.Key] = true
	}
	return nil
}

// remains reports whether drift remains. A VM on another host counts as drift even if its
// other differences were repaired.
func (d *drifted) remains() bool {
	for i := range d.hosts {
		for _, vm := range d.hosts[i].VMs {
			repaired := vm.Class == scaler.DriftRepairable && d.repaired[vm.VM.Key]
			if vm.Class != scaler.DriftNone && !repaired {
				return true
			}
		}
	}
	return false
}

// failure returns the errors of the hosts that could not be compared, or nil. A host that
// is down is not a failure.
func (d *drifted) failure() error {
	var failures []error
	for i := range d.hosts {
		var down *scaler.HostDownError
		if err := d.hosts[i].Err; err != nil && !errors.As(err, &down) {
			failures = append(failures, fmt.Errorf("host %s: %w", d.hosts[i].Host, err))
		}
	}
	return errors.Join(failures...)
}

// driftReport is the output of drift. The text format omits some fields.
type driftReport struct {
	// Classes counts the VMs in each class.
	Classes map[scaler.DriftClass]int `json:"classes"`
	VMs     []vmDriftReport           `json:"vms"`
	// Errors lists the hosts that could not be compared.
	Errors []hostReport `json:"errors,omitempty"`
	// Repair contains the plans that revert drift, by host.
	Repair []hostReport `json:"repair,omitempty"`
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

// print prints the drift of each VM, and the plan of the repair.
func (d *drifted) print(process Process, o *options) error {
	r := driftReport{Classes: map[scaler.DriftClass]int{}, VMs: []vmDriftReport{}, Repair: hostReports(d.plans)}
	for i := range d.hosts {
		for _, vm := range d.hosts[i].VMs {
			r.Classes[vm.Class]++
			r.VMs = append(r.VMs, vmDriftReport{
				Name:        vm.VM.Name,
				VMID:        vm.VM.VMID,
				Host:        vm.VM.Host,
				Now:         vm.Host,
				Class:       vm.Class,
				Repairable:  vm.Repairable,
				Differences: vm.Differences,
				Notes:       vm.Notes,
				Advice:      vm.Advice,
			})
		}
		if err := d.hosts[i].Err; err != nil {
			r.Errors = append(r.Errors, hostReport{Host: d.hosts[i].Host, Error: err.Error()})
		}
	}
	if o.output != "text" {
		return printData(process, o.output, r)
	}

	w := newPrinter(process)
	w.heading("VMs and their files")
	var counts []string
	for _, class := range scaler.DriftClasses() {
		if n := r.Classes[class]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, class))
		}
	}
	w.printf("  %s\n", cmp.Or(strings.Join(counts, ", "), "the fleet has no VMs"))

	// Print one aligned line for each VM, followed by its details.
	var lines strings.Builder
	aligned := &printer{w: &lines}
	aligned.table(func(table io.Writer) {
		for _, vm := range r.VMs {
			fmt.Fprintf(table, "  %s\t%d\t%s\t%s\n", vm.Name, vm.VMID, vm.Host, vm.Class)
		}
	})
	i := 0
	for line := range strings.Lines(lines.String()) {
		vm := &r.VMs[i]
		i++
		w.printf("%s", line)
		for _, difference := range vm.Differences {
			w.printf("      %s: file has %s, Proxmox has %s\n", difference.Attribute, difference.File, difference.Proxmox)
		}
		for _, note := range vm.Notes {
			w.printf("      %s\n", note)
		}
		if vm.Advice != "" {
			w.printf("      → %s\n", vm.Advice)
		}
	}
	for _, host := range r.Errors {
		w.printf("  %s cannot be compared: %s\n", host.Host, host.Error)
	}
	w.plans(r.Repair)
	return w.err
}
