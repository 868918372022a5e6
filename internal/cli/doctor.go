package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	options
	smoke            bool
	class, namespace string
}

func newDoctor(process Process) *cobra.Command {
	var o doctorOptions
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check all that numaform needs, and say how to mend what is missing",
		Long: "Check engine and provider, configuration, certificate, credential, privileges, hosts, topology, templates, storages, VMIDs and locks. " +
			"Each check is a line: ok, warn, fail, or skip where it depends on one that failed. Nothing is changed, but by --smoke, which makes and removes " +
			"a small VM by plan, guard and apply. It exits 1 if a check fails.",
		Example: "  numaform doctor                                # what can be told without classes\n" +
			"  numaform doctor -f manifests/                  # and what the ProxmoxNodeClasses there need\n" +
			"  numaform doctor --kubeconfig ~/.kube/config    # or those of a cluster\n" +
			"  numaform doctor -f manifests/ --smoke          # and make a VM, and remove it\n" +
			"  numaform doctor -o json | jq '.findings[] | select(.status == \"fail\")'",
		RunE: func(command *cobra.Command, _ []string) error { return runDoctor(command.Context(), process, &o) },
	}
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "numaform.yaml", "configuration file")
	flags.StringSliceVarP(&o.files, "filename", "f", nil, "manifests (files or directories) with the ProxmoxNodeClasses to look for")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster that has them")
	flags.StringVar(&o.kubeContext, "context", "", "context of the kubeconfig")
	flags.StringVarP(&o.namespace, "namespace", "n", "numaform", "namespace that numaform runs in, which has the Secrets of classes that name none")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json")
	flags.BoolVar(&o.smoke, "smoke", false, "make and remove one small VM, if no check failed")
	flags.StringVar(&o.class, "smoke-class", "", "ProxmoxNodeClass of that VM; empty means the first")
	return command
}

func runDoctor(ctx context.Context, process Process, o *doctorOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	o.clusterless = true
	if o.smoke && o.unnamed() {
		return usageError{errors.New("--smoke needs a ProxmoxNodeClass: name manifests with -f, or a cluster with --kubeconfig")}
	}
	patient := o.examine(ctx, process)
	report := doctor.Run(ctx, patient)
	if o.smoke {
		report = append(report, o.smokeTest(ctx, process, patient.Classes, report.Count(doctor.Fail)))
	}
	if err := printDoctor(process, o.output, report); err != nil {
		return err
	}
	if report.Count(doctor.Fail) > 0 {
		return exitError{ExitFailed}
	}
	return nil
}

// examine collects everything for the checks. Errors of reading are part of the result.
func (o *doctorOptions) examine(ctx context.Context, process Process) doctor.Config {
	patient := doctor.Config{File: o.config, Named: !o.unnamed()}
	if patient.Named {
		cluster, err := o.cluster(ctx)
		if err == nil {
			patient.Classes, err = cluster.NodeClasses(ctx)
			patient.Templates = func(ctx context.Context, ref v1alpha1.SecretReference) (map[string][]byte, error) {
				return cluster.Secret(ctx, cmp.Or(ref.Namespace, o.namespace), ref.Name)
			}
		}
		patient.ClassesBroken = err
	}
	config, err := loadConfig(process, o.config)
	if err == nil {
		patient.Types, err = config.InstanceTypes()
	}
	if err != nil {
		patient.Broken = err
		return patient
	}
	patient.ClusterID, patient.PluginDir = config.ClusterID, config.Engine.PluginDir
	if config.StateDir != "" {
		patient.StateDir, patient.Broken = config.StatePath()
	}
	patient.Engine = state.EngineConfig{Binary: config.Engine.Binary, Version: config.Engine.Version}
	regions := config.Regions()
	for i := range config.Clusters {
		patient.Regions = append(patient.Regions, connect(config, i, &regions[i]))
	}
	scale, err := o.scaler(ctx, process, config, regions)
	patient.Fleet = func(ctx context.Context) (fleet.Fleet, error) {
		if err != nil {
			return fleet.Fleet{}, err
		}
		current, _, err := scale.scaler.Fleet(ctx)
		return current, err
	}
	patient.Locks = func(ctx context.Context) ([]doctor.Lock, error) {
		if err != nil {
			return nil, err
		}
		return scale.locks(ctx)
	}
	return patient
}

// connect returns one region with a client of its own, so that errors in another region
// do not affect it.
func connect(config *operator.Config, i int, region *scaler.Region) doctor.Region {
	one := *config
	one.Clusters = slices.Clone(config.Clusters[i : i+1])
	found := doctor.Region{Name: region.Name, Insecure: region.Insecure, VMIDs: region.VMIDs}
	var clients map[topology.RegionName]*proxmox.Client
	clients, found.Broken = one.Connect()
	if found.Broken != nil {
		return found
	}
	found.Client = clients[region.Name]
	found.Snapshot = func(ctx context.Context) (*topology.Snapshot, error) {
		snapshot, _, err := config.Reachable(ctx, clients)
		return snapshot, err
	}
	return found
}

// keeper accesses the fleet.
type keeper struct {
	scaler *scaler.Scaler
	config *scaler.Config
	// shared is set if a controller may be working on the fleet.
	shared bool
	// inGit is set if the fleet is in a git repository.
	inGit bool
}

// scaler opens the fleet, even without an engine.
func (o *doctorOptions) scaler(ctx context.Context, process Process, config *operator.Config, regions []scaler.Region) (*keeper, error) {
	cluster := operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext}
	opened, err := config.ScalerConfig(ctx, process.Environ, cluster, true)
	if missing := (*state.EngineError)(nil); errors.As(err, &missing) {
		opened, err = config.ScalerConfig(ctx, process.Environ, cluster, false)
	}
	if err != nil {
		return nil, err
	}
	opened.Regions = regions
	return &keeper{
		scaler: scaler.New(*opened), config: opened,
		shared: config.Fleet.ConfigMap != (operator.ConfigMap{}),
		inGit:  config.Fleet.Git.Enabled || config.Fleet.Git.Remote != "",
	}, nil
}

// locks checks the fleet's lock and the states' locks.
func (k *keeper) locks(ctx context.Context) ([]doctor.Lock, error) {
	found := []doctor.Lock{k.fleetLock(ctx)}
	if k.scaler.LocalStates() {
		return append(found, doctor.Lock{Where: "states", What: "are files of this machine: their locks end with whoever took them"}), nil
	}
	states, err := k.scaler.Locks(ctx)
	for _, lock := range states {
		found = append(found, doctor.Lock{Where: "state of " + lock.Host.String(), Err: lock.Err, What: "is free"})
	}
	if err == nil && len(states) == 0 {
		found = append(found, doctor.Lock{Where: "states", What: "there are none yet"})
	}
	return found, err
}

// fleetLock acquires and releases the fleet's lock, if no controller needs it.
func (k *keeper) fleetLock(ctx context.Context) doctor.Lock {
	lock := doctor.Lock{Where: "fleet", What: "is free"}
	if k.shared {
		lock.What = "is the controller's to take, and was not tried"
		return lock
	}
	place := filepath.Join(k.config.Dir, store.PrivateDir)
	if k.inGit {
		place = filepath.Join(k.config.StateDir, "git")
	}
	if _, err := os.Stat(place); errors.Is(err, os.ErrNotExist) {
		lock.What = "is not there yet: the first apply makes it"
		return lock
	}
	unlock, err := k.config.Store.Lock(ctx)
	if err == nil {
		err = unlock()
	}
	lock.Err = err
	return lock
}

// doctorReport is the output of doctor -o json.
type doctorReport struct {
	Findings doctor.Report `json:"findings"`
	OK       int           `json:"ok"`
	Warnings int           `json:"warnings"`
	Failed   int           `json:"failed"`
	Skipped  int           `json:"skipped"`
}

func printDoctor(process Process, output string, report doctor.Report) error {
	sum := doctorReport{report, report.Count(doctor.OK), report.Count(doctor.Warn), report.Count(doctor.Fail), report.Count(doctor.Skip)}
	if output == "json" {
		encoder := json.NewEncoder(process.Stdout)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(sum)
	}
	w := &printer{w: process.Stdout}
	for _, finding := range report {
		w.printf("%-5s %-11s %s\n", finding.Status, finding.Check, finding.Line())
	}
	w.printf("\n%d ok, %d warnings, %d failed, %d skipped\n", sum.OK, sum.Warnings, sum.Failed, sum.Skipped)
	return w.err
}
