package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// options are the flags of the commands that read a fleet.
type options struct {
	config     string
	files      []string
	kubeconfig operator.Kubeconfig
	snapshot   string
	out        string
	output     string
	noEngine   bool
	// diff shows the diff of node files; verbose also shows the reason and the CPUs of each
	// placement, and the engine's plans.
	diff, verbose bool
	// quiet shows only totals, problems and results.
	quiet bool
	// dryRun stops before any change.
	dryRun bool
	// applies is set if the command may change the fleet.
	applies     bool
	autoApprove bool
	approve     string
	signing     signing
	// clusterless allows a command to run without manifests and without a cluster.
	clusterless bool
	// smoke allows manifests together with a kubeconfig: a smoke test reads its own pod from
	// a file, and the fleet from the cluster.
	smoke bool
}

func (o *options) register(flags *pflag.FlagSet) {
	registerConfig(flags, &o.config)
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "`FILE` or directory of manifests to use instead of a cluster; repeatable")
	registerKubeconfig(flags, &o.kubeconfig, "kubeconfig of the cluster")
	registerOutput(flags, &o.output)
	flags.StringVar(&o.snapshot, "snapshot", "", "use a recorded Proxmox snapshot, as printed by numaform topology -o json, instead of the live API")
}

// registerReport adds the flags that select how much of a change is printed.
func (o *options) registerReport(flags *pflag.FlagSet) {
	flags.BoolVar(&o.diff, "diff", false, "show the diff of the node files")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "show everything: node files, the reason for each placement, the owner of each CPU before and after, and the engine's plans")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "show only totals, what is refused or not allowed, and results, without a line for each VM and file")
}

// registerChange adds the flags of a command that applies changes.
func (o *options) registerChange(flags *pflag.FlagSet) {
	o.register(flags)
	flags.BoolVar(&o.autoApprove, "auto-approve", false, "apply without confirmation, unless the guard denies the change or requires approval")
	flags.StringVar(&o.approve, "approve", "", "approve the change with this digest, as printed by plan, if the guard requires approval")
	o.signing.register(flags)
	flags.BoolVar(&o.dryRun, "dry-run", false, "plan, check and show the change without applying it")
	// checkLive rejects the flag with an explanation; hide it from help.
	flags.Lookup("snapshot").Hidden = true
}

func (o *options) check() error {
	if len(o.files) > 0 && !o.smoke && (o.kubeconfig.Path != "" || o.kubeconfig.Context != "") {
		return usageError{errors.New("-f and --kubeconfig are mutually exclusive: read pods either from files or from a cluster")}
	}
	if o.quiet && (o.verbose || o.diff) {
		return usageError{errors.New("--quiet excludes --verbose and --diff: remove one of the flags")}
	}
	return o.signing.check()
}

// checkLive refuses a recorded snapshot, because a change requires the live state.
func (o *options) checkLive() error {
	if o.snapshot != "" {
		return usageError{errors.New("--snapshot works only with plan, explain and topology; other commands require the live state of Proxmox: remove the flag")}
	}
	return o.check()
}

// withoutCluster reports whether the command runs without manifests and without a cluster.
// The command then has no information about Nodes, so it deletes no VMs.
func (o *options) withoutCluster() bool {
	return o.clusterless && len(o.files) == 0 && o.kubeconfig.Path == "" && o.kubeconfig.Context == ""
}

// talk returns the process for text that follows the report of a change: if the report is data,
// stdout contains nothing else, and the text goes to stderr.
func (o *options) talk(process Process) Process {
	if o.output != "text" {
		process.Stdout = process.Stderr
	}
	return process
}

// cluster returns the Kubernetes cluster: the objects in the manifests, the cluster of the
// kubeconfig, or an empty cluster if the command runs without both.
func (o *options) cluster(ctx context.Context) (*scheduling.Cluster, error) {
	if o.withoutCluster() {
		return scheduling.FromObjects(nil), nil
	}
	if len(o.files) == 0 {
		return scheduling.FromKubeconfig(ctx, o.kubeconfig.Path, o.kubeconfig.Context)
	}
	objects, err := scheduling.Load(o.files)
	if err != nil {
		return nil, err
	}
	return scheduling.FromObjects(objects), nil
}

// session contains the dependencies of one command.
type session struct {
	config   *operator.Config
	cluster  *scheduling.Cluster
	snapshot *topology.Snapshot
	scaler   *scaler.Scaler
	regions  []scaler.Region
	clock    clock.PassiveClock
}

// open reads the configuration, the cluster and Proxmox, and creates the scaler. It writes
// nothing.
func open(ctx context.Context, process Process, o *options) (*session, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &session{clock: clock.RealClock{}}
	var err error
	if s.cluster, err = o.cluster(ctx); err != nil {
		return nil, err
	}
	if s.config, err = loadConfig(process, o.config); err != nil {
		return nil, err
	}
	regions := s.config.Regions()
	var unread []operator.Unread
	if o.snapshot != "" {
		s.snapshot, err = operator.RecordedSnapshot(o.snapshot)
	} else {
		s.snapshot, unread, err = live(ctx, process, s.config, regions)
	}
	if err != nil {
		return nil, err
	}

	config, err := s.config.ScalerConfig(ctx, process.Environ, o.kubeconfig, !o.noEngine)
	if err != nil {
		return nil, err
	}
	config.Regions = regions
	s.regions = regions
	config.Actor = actor()
	config.Version = process.Version
	config.Notice = func(message string) { fmt.Fprintf(process.Stderr, "numaform: %s\n", message) }
	steps := &steps{screen: process.screen}
	redrawn := process.terminal(process.Stderr).Live
	config.Quiet = o.quiet
	if redrawn || !o.quiet {
		config.Count = steps.count
	}
	var mu sync.Mutex // hosts report concurrently
	config.Progress = func(host topology.HostID, message string) {
		mu.Lock()
		defer mu.Unlock()
		if redrawn && message == scaler.ProgressPlanning {
			return // the progress line counts these hosts
		}
		// The engine's messages name a VM's resource; the name of the VM suffices.
		if before, after, isResource := strings.Cut(message, ".proxmox_virtual_environment_vm.node: "); isResource {
			message = strings.TrimPrefix(strings.TrimPrefix(before, "module."), "_") + ": " + after
		}
		fmt.Fprintf(process.Stderr, "%s: %s\n", host, message)
	}
	if !o.withoutCluster() {
		config.Drained = s.cluster.Drained
		config.NodeExists = s.cluster.NodeExists
		config.NodeAddresses = s.cluster.NodeAddresses
	}
	config.ClassVMIDs = s.cluster.ClassVMIDs
	hasNodes, err := s.cluster.HasNodes(ctx)
	if err != nil {
		return nil, err
	}
	if !hasNodes {
		config.Blind = "its file was deleted, but the manifests contain no Node, so its pods are unknown: " +
			"pass the cluster with --kubeconfig, or restore the file and run numaform remove"
	}
	if sealed, is := config.Store.(*store.Sealed); is && o.applies {
		sealed.PutBack(func(done store.PutBack) { config.Notice(done.String()) })
	}
	s.scaler = scaler.New(*config)
	if len(unread) > 0 {
		return s, s.addUnreadHosts(ctx, unread)
	}
	return s, nil
}

// actor returns the user and machine that run numaform, for the history.
func actor() string {
	name := "unknown"
	if current, err := user.Current(); err == nil {
		name = current.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

// live reads all regions and sets the clients of the regions that respond. If a region does
// not respond, it prints a message and continues with the other regions.
func live(ctx context.Context, process Process, config *operator.Config, regions []scaler.Region) (*topology.Snapshot, []operator.Unread, error) {
	clients, err := config.Connect()
	if err != nil {
		return nil, nil, err
	}
	defer process.progress("reading Proxmox")()
	snapshot, unread, err := config.Reachable(ctx, clients)
	if err != nil {
		return nil, nil, err
	}
	for _, region := range unread {
		fmt.Fprintf(process.Stderr, "numaform: skipping region %s: %v\n", region.Region, region.Err)
		delete(clients, region.Region)
	}
	for i := range regions {
		if client := clients[regions[i].Name]; client != nil {
			regions[i].Live = client
		}
	}
	return snapshot, unread, nil
}

// addUnreadHosts adds the fleet's hosts in unreadable regions to the snapshot, with the VMs
// in the fleet's files. These hosts are not considered down: the state of their Nodes in
// Kubernetes applies, and a VM without a Node is treated as joining.
func (s *session) addUnreadHosts(ctx context.Context, unread []operator.Unread) error {
	current, _, err := s.scaler.Fleet(ctx)
	if err != nil {
		return err
	}
	var hosts []topology.Host
	for _, id := range current.AllHosts() {
		vms := current.On(id)
		if len(vms) == 0 || s.snapshot.Host(id) != nil ||
			!slices.ContainsFunc(unread, func(u operator.Unread) bool { return u.Region == id.Region }) {
			continue
		}
		host := topology.Host{Region: id.Region, Name: id.Host, Online: true, Problem: "its region cannot be read"}
		for _, vm := range vms {
			host.Guests = append(host.Guests, topology.Guest{
				VMID:      int(vm.VMID),
				Name:      vm.Name,
				Kind:      topology.GuestVM,
				VCPUs:     vm.VCPUs,
				MemoryMiB: vm.MemoryMiB,
				ClusterID: s.config.ClusterID,
				Key:       string(vm.Key),
			})
		}
		hosts = append(hosts, host)
	}
	s.snapshot.Hosts = append(s.snapshot.Hosts, hosts...)
	slices.SortFunc(s.snapshot.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
	return nil
}

// request returns the input of a scheduling decision for a fleet.
func (s *session) request(current *fleet.Fleet) (scheduling.Request, error) {
	types, err := s.config.InstanceTypes()
	return scheduling.Request{
		ClusterID: s.config.ClusterID,
		Snapshot:  s.snapshot,
		Existing:  current.VMs,
		Types:     types,
		Prices:    s.config.Prices,
		Overlays:  true,
	}, err
}

// checkNotLost refuses an empty fleet while its VMs exist in Proxmox: the directory is wrong
// or the files are lost, and a change would create the same VMs again.
func (s *session) checkNotLost(ctx context.Context, current *fleet.Fleet) error {
	if len(current.VMs)+len(current.Hosts) > 0 {
		return nil
	}
	var names []string
	for i := range s.snapshot.Hosts {
		for _, guest := range s.snapshot.Hosts[i].Guests {
			if guest.ClusterID == s.config.ClusterID {
				names = append(names, guest.Name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	// A recorded change may have removed the files on request, for example by a revert.
	history, err := s.scaler.History(ctx, time.Time{})
	if err != nil || slices.ContainsFunc(history, func(e audit.Entry) bool { return e.Verified }) {
		return err
	}
	return fmt.Errorf("the fleet in %s is empty, but Proxmox has %s with clusterID %q (%s); nothing was changed: set fleet in numaform.yaml "+
		"to the fleet's directory or repository, or restore its files from version control; if they cannot be restored, destroy these VMs "+
		"or choose another clusterID", s.config.FleetDir(), topology.Count(len(names), "VM"), s.config.ClusterID, topology.Named(names))
}
