package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	options
	smokeTest, fix   bool
	class, namespace string
}

func newDoctor(process Process) *cobra.Command {
	var o doctorOptions
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check numaform's requirements, and explain how to fix each problem",
		Long: "Check engine and provider, configuration, certificate, credential, privileges, hosts, topology, templates, storages, VMIDs, targets of notifications and locks. " +
			"Each line is the result of one check: ok, warn, fail, or skip if it depends on a failed check. The command changes nothing, except with " +
			"--smoke, which creates and removes a small VM with plan, guard and apply, and with --fix, which creates the state directory and removes " +
			"the access of other users to it and to the files with secrets, and prints the commands of those other fixes that apply in every case. It exits with 1 if a check fails.",
		Example: "  numaform doctor                                # checks that need no ProxmoxNodeClass\n" +
			"  numaform doctor -f manifests/                  # also check the ProxmoxNodeClasses in files\n" +
			"  numaform doctor --kubeconfig ~/.kube/config    # also check those in a cluster\n" +
			"  numaform doctor -f manifests/ --smoke          # also create and remove a VM\n" +
			"  numaform doctor -f manifests/ --fix            # fix what is safe, and print commands to review\n" +
			"  numaform doctor -o json | jq '.findings[] | select(.status == \"fail\")'",
		RunE: func(command *cobra.Command, _ []string) error { return runDoctor(command.Context(), process, &o) },
	}
	flags := command.Flags()
	registerConfig(flags, &o.config)
	flags.StringSliceVarP(&o.files, "filename", "f", nil, "manifests (files or directories) with the ProxmoxNodeClasses to check")
	registerKubeconfig(flags, &o.kubeconfig, "kubeconfig of the cluster with the ProxmoxNodeClasses to check")
	flags.StringVarP(&o.namespace, "namespace", "n", defaultNamespace, "namespace in which numaform runs, the default for Secrets of ProxmoxNodeClasses")
	registerOutput(flags, &o.output)
	flags.BoolVar(&o.fix, "fix", false, "create missing private directories, restrict the access to secrets, and print commands of other fixes")
	flags.BoolVar(&o.smokeTest, "smoke", false, "create and remove one small VM, if no check failed")
	flags.StringVar(&o.class, "smoke-class", "", "ProxmoxNodeClass of the smoke test; empty means the first")
	return command
}

func runDoctor(ctx context.Context, process Process, o *doctorOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	o.clusterless = true
	if inPod(process.Environ) {
		o.clusterless = false // the classes are those of the cluster of the pod
	}
	if o.smokeTest && o.withoutCluster() {
		return usageError{errors.New("--smoke requires a ProxmoxNodeClass: pass manifests with -f, or a cluster with --kubeconfig")}
	}
	checks := o.checks(ctx, process)
	if o.fix {
		repair(process, checks)
	}
	report := doctor.Run(ctx, checks)
	failed := report.Count(doctor.Fail)
	if o.smokeTest {
		report = append(report, o.runSmokeTest(ctx, process, checks.Classes, failed))
		failed = report.Count(doctor.Fail)
	}

	sum := newDoctorReport(report)
	if o.output != "text" {
		if err := printData(process, o.output, sum); err != nil {
			return err
		}
	} else {
		w := newPrinter(process)
		next := o.next(failed, o.podSource(process.Environ))
		if _, err := os.Stat(o.config); checks.Broken != nil && o.config == operator.DefaultFile && errors.Is(err, os.ErrNotExist) {
			next = "numaform init"
		}
		w.doctor(&sum, next)
		if w.err != nil {
			return w.err
		}
	}
	if o.fix {
		printCommands(process, report)
	}
	if failed > 0 {
		return exitError{ExitFailed}
	}
	return nil
}

// inPod reports whether numaform runs in a pod of its chart.
func inPod(environ []string) bool {
	set := func(name string) bool {
		return slices.ContainsFunc(environ, func(entry string) bool { return strings.HasPrefix(entry, name+"=") && entry != name+"=" })
	}
	return set("KUBERNETES_SERVICE_HOST") && set("NUMAFORM_NAMESPACE")
}

// next returns the command to run after the checks.
func (o *doctorOptions) next(failed int, pods podSource) string {
	namespace := namespaceFlag(o.namespace)
	switch {
	case failed > 0:
		return "numaform doctor" + o.source() + namespace
	case !pods.known:
		return "numaform status" + o.source()
	case pods.flags != o.source():
		return "numaform doctor" + pods.flags + namespace // the classes are not checked yet
	}
	return "numaform plan" + pods.flags
}

// doctor prints the totals, each sentence once with its places, and at the end the failures
// with their fixes.
func (w *printer) doctor(r *doctorReport, next string) {
	failed := fmt.Sprintf("%d failed", r.Failed)
	if r.Failed > 0 {
		failed = w.Paint(term.Red, failed)
	}
	w.printf("%s, %s, %d ok, %d skipped\n\n", failed, topology.Count(r.Warnings, "warning"), r.OK, r.Skipped)
	var failures doctor.Report
	for _, finding := range r.Findings.Grouped() {
		if finding.Status == doctor.Fail {
			failures = append(failures, finding)
			finding.What, finding.Fix = "", "" // printed below, with the failures
		}
		w.finding(&finding)
	}
	if len(failures) > 0 {
		w.raw("\n")
	}
	for i := range failures {
		w.finding(&failures[i])
	}
	w.raw("\n")
	if len(failures) > 0 {
		w.printf("Fix the failures, then check again.\n")
	}
	w.nextCommand(next)
}

// findingIndent is the width of a finding's status and check.
const findingIndent = 18

// finding prints one finding. Its text is wrapped beside its status and check.
func (w *printer) finding(f *doctor.Finding) {
	color := map[doctor.Status]term.Color{doctor.OK: term.Green, doctor.Warn: term.Yellow, doctor.Fail: term.Red}[f.Status]
	status := string(f.Status)
	if f.Status != doctor.Skip {
		status = w.Paint(color, status)
	}
	beside := w.Terminal
	beside.Width -= findingIndent
	text := strings.ReplaceAll(beside.Fill(f.Line(), 0), "\n", "\n"+strings.Repeat(" ", findingIndent))
	w.raw(strings.TrimRight(status+strings.Repeat(" ", 6-len(f.Status))+fmt.Sprintf("%-11s ", f.Check)+text, " ") + "\n")
}

// doctorReport is the output of doctor with -o json or -o yaml.
type doctorReport struct {
	Findings doctor.Report `json:"findings"`
	OK       int           `json:"ok"`
	Warnings int           `json:"warnings"`
	Failed   int           `json:"failed"`
	Skipped  int           `json:"skipped"`
}

func newDoctorReport(findings doctor.Report) doctorReport {
	return doctorReport{
		Findings: findings,
		OK:       findings.Count(doctor.OK),
		Warnings: findings.Count(doctor.Warn),
		Failed:   findings.Count(doctor.Fail),
		Skipped:  findings.Count(doctor.Skip),
	}
}

// checks returns the input of the checks, including the errors that occurred while
// reading it.
func (o *doctorOptions) checks(ctx context.Context, process Process) doctor.Config {
	checks := doctor.Config{File: o.config, Named: !o.withoutCluster()}
	if checks.Named {
		cluster, err := o.cluster(ctx)
		if err == nil {
			checks.Classes, err = cluster.NodeClasses(ctx)
			if err == nil {
				checks.PoolMistakes, err = cluster.PoolMistakes(ctx)
			}
			checks.Templates = func(ctx context.Context, ref v1alpha1.SecretReference) (map[string][]byte, error) {
				return cluster.Secret(ctx, cmp.Or(ref.Namespace, o.namespace), ref.Name)
			}
		}
		checks.ClassesBroken = err
	}
	config, err := loadConfig(process, o.config)
	if err == nil {
		checks.Types, err = config.InstanceTypes()
	}
	if err != nil {
		checks.Broken = err
		return checks
	}
	if _, err := os.Stat(o.config); errors.Is(err, os.ErrNotExist) {
		checks.File = "environment"
	}
	checks.ClusterID = config.ClusterID
	checks.SecretFiles = config.SecretFiles()
	checks.PluginDir = config.Engine.PluginDir
	checks.Engine = state.EngineConfig{Binary: config.Engine.Binary, Version: config.Engine.Version}
	for _, target := range config.Notifications.Targets {
		checks.Notifications = append(checks.Notifications, doctor.Notification{
			Name: target.Name, Type: target.Type,
			Probe: func(ctx context.Context) error { return target.Probe(ctx, config.Redact(process.Environ)) },
		})
	}
	if config.StateDir != "" {
		checks.StateDir, checks.Broken = config.StatePath()
	}

	regions := config.Regions()
	for i := range regions {
		// Connect to each region separately, so that an error affects only one region.
		one := *config
		one.Clusters = slices.Clone(config.Clusters[i : i+1])
		region := doctor.Region{Name: regions[i].Name, Insecure: regions[i].Insecure, VMIDs: regions[i].VMIDs, TemplateVMIDs: regions[i].TemplateVMIDs}
		clients, err := one.Connect()
		if err != nil {
			region.Broken = err
		} else {
			region.Client = clients[region.Name]
			region.Snapshot = func(ctx context.Context) (*topology.Snapshot, error) {
				snapshot, _, err := config.Reachable(ctx, clients)
				return snapshot, err
			}
		}
		checks.Regions = append(checks.Regions, region)
	}

	// The fleet can be read without an engine.
	opened, err := config.ScalerConfig(ctx, process.Environ, o.kubeconfig, true)
	if missing := (*state.EngineError)(nil); errors.As(err, &missing) {
		opened, err = config.ScalerConfig(ctx, process.Environ, o.kubeconfig, false)
	}
	if err != nil {
		checks.Fleet = func(context.Context) (fleet.Fleet, error) { return fleet.Fleet{}, err }
		checks.Locks = func(context.Context) ([]doctor.Lock, error) { return nil, err }
		return checks
	}
	opened.Regions = regions
	s := scaler.New(*opened)
	checks.Fleet = func(ctx context.Context) (fleet.Fleet, error) {
		current, _, err := s.Fleet(ctx)
		return current, err
	}
	checks.Locks = func(ctx context.Context) ([]doctor.Lock, error) { return locks(ctx, config, opened, s) }
	return checks
}

// locks returns the state of the lock of the fleet and of the locks of the states.
func locks(ctx context.Context, config *operator.Config, opened *scaler.Config, s *scaler.Scaler) ([]doctor.Lock, error) {
	fleetLock := doctor.Lock{Where: "fleet", What: "is free"}
	place := filepath.Join(opened.Dir, store.PrivateDir)
	if config.Fleet.Git.Enabled || config.Fleet.Git.Remote != "" {
		place = filepath.Join(opened.StateDir, "git")
	}
	_, err := os.Stat(place)
	switch {
	case config.Fleet.ConfigMap != (operator.ConfigMap{}):
		fleetLock.What = "is managed by the controller and was not checked"
	case errors.Is(err, os.ErrNotExist):
		fleetLock.What = "does not exist yet: the first apply creates it"
	default:
		var unlock func() error
		if unlock, fleetLock.Err = opened.Store.Lock(ctx); fleetLock.Err == nil {
			fleetLock.Err = unlock()
		}
	}

	found := []doctor.Lock{fleetLock}
	if s.LocalStates() {
		return append(found, doctor.Lock{Where: "states", What: "are local files: a lock ends with the process that acquired it"}), nil
	}
	states, err := s.Locks(ctx)
	for _, lock := range states {
		found = append(found, doctor.Lock{Where: "state of " + lock.Host.String(), Err: lock.Err, What: "is free"})
	}
	if err == nil && len(states) == 0 {
		found = append(found, doctor.Lock{Where: "states", What: "do not exist yet"})
	}
	return found, err
}
