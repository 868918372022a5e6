package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// options are the flags that plan, apply and remove share.
type options struct {
	config      string
	files       []string
	kubeconfig  string
	kubeContext string
	snapshot    string
	out         string
	output      string
	noEngine    bool
	autoApprove bool
	approve     string
	// clusterless commands work without a Kubernetes cluster where none is named.
	clusterless bool
}

func (o *options) register(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "numaform.yaml", "configuration file")
	flags.StringSliceVarP(&o.files, "filename", "f", nil, "manifests (files or directories) to decide for, instead of a cluster")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to decide for")
	flags.StringVar(&o.kubeContext, "context", "", "context of the kubeconfig")
	flags.StringVar(&o.snapshot, "snapshot", "", "recorded Proxmox, as numaform topology -o json prints it, instead of a live one (plan only)")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json")
}

func (o *options) check() error {
	if o.output != "text" && o.output != "json" {
		return usageError{fmt.Errorf("--output %q: want text or json", o.output)}
	}
	if len(o.files) > 0 && (o.kubeconfig != "" || o.kubeContext != "") {
		return usageError{errors.New("-f and --kubeconfig exclude each other: pods come from files or from a cluster")}
	}
	return nil
}

// checkLive refuses what a recorded Proxmox cannot answer.
func (o *options) checkLive() error {
	if o.snapshot != "" {
		return usageError{errors.New("--snapshot is for plan: a change is made of what Proxmox holds now, so leave it out")}
	}
	return o.check()
}

// unnamed reports whether the command does without a cluster. Then nothing is known
// of Nodes, and no VM is deleted.
func (o *options) unnamed() bool {
	return o.clusterless && len(o.files) == 0 && o.kubeconfig == "" && o.kubeContext == ""
}

// cluster reads the Kubernetes side.
func (o *options) cluster(ctx context.Context) (*scheduling.Cluster, error) {
	if o.unnamed() {
		return scheduling.FromObjects(nil), nil
	}
	if len(o.files) == 0 {
		return scheduling.FromKubeconfig(ctx, o.kubeconfig, o.kubeContext)
	}
	objects, err := scheduling.Load(o.files)
	if err != nil {
		return nil, err
	}
	return scheduling.FromObjects(objects), nil
}

// session is what one command works with.
type session struct {
	config   *operator.Config
	cluster  *scheduling.Cluster
	snapshot *topology.Snapshot
	scaler   *scaler.Scaler
}

// open reads configuration, cluster and Proxmox and makes the scaler. It writes
// nothing.
func open(ctx context.Context, process Process, o *options) (*session, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &session{}
	var err error
	if s.cluster, err = o.cluster(ctx); err != nil {
		return nil, err
	}
	if s.config, err = operator.Load(o.config, process.Environ); err != nil {
		return nil, err
	}
	regions := s.config.Regions()
	if o.snapshot != "" {
		s.snapshot, err = s.config.RecordedSnapshot(o.snapshot)
	} else {
		s.snapshot, err = live(ctx, s.config, regions)
	}
	if err != nil {
		return nil, err
	}
	config, err := s.scalerConfig(ctx, process, o)
	if err != nil {
		return nil, err
	}
	config.Regions = regions
	s.scaler = scaler.New(*config)
	return s, nil
}

// scalerConfig returns what the scaler needs, but for the regions.
func (s *session) scalerConfig(ctx context.Context, process Process, o *options) (*scaler.Config, error) {
	cluster := operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext}
	config, err := s.config.ScalerConfig(ctx, process.Environ, cluster, !o.noEngine)
	if err != nil {
		return nil, err
	}
	config.Actor, config.Version, config.Progress = actor(), process.Version, progress(process)
	if !o.unnamed() {
		config.Drained = s.cluster.Drained
	}
	hasNodes, err := s.cluster.HasNodes(ctx)
	if err == nil && !hasNodes {
		config.Blind = "its file was deleted, and without any Node in the manifests nobody knows what runs on it: " +
			"name the cluster with --kubeconfig, or restore the file and numaform remove it"
	}
	return config, err
}

// actor names who runs numaform, for the fleet's history.
func actor() string {
	name := "unknown"
	if person, err := user.Current(); err == nil {
		name = person.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

// live reads the clusters and puts their clients into regions.
func live(ctx context.Context, config *operator.Config, regions []scaler.Region) (*topology.Snapshot, error) {
	clients, err := config.Connect()
	if err != nil {
		return nil, err
	}
	for i := range regions {
		regions[i].Live = clients[regions[i].Name]
	}
	return config.Snapshot(ctx, clients)
}

// progress prints a line for each step of a shard to stderr.
func progress(process Process) func(fleet.Shard, string) {
	return func(shard fleet.Shard, message string) {
		fmt.Fprintf(process.Stderr, "%s: %s\n", shard, message)
	}
}
