package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// options are the flags shared by plan, apply and remove.
type options struct {
	config      string
	files       []string
	kubeconfig  string
	kubeContext string
	snapshot    string
	out         string
	output      string
	noEngine    bool
	// diff shows node files, verbose everything.
	diff, verbose bool
	// dryRun stops before any change.
	dryRun      bool
	autoApprove bool
	approve     string
	// clusterless allows commands to run without a Kubernetes cluster if none is
	// configured.
	clusterless bool
	// own, if set, returns the cluster of a smoke test.
	own func() (*scheduling.Cluster, error)
}

func (o *options) register(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "numaform.yaml", "configuration file")
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "`FILE` or directory of manifests to decide for instead of a cluster; may be given several times")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to decide for")
	flags.StringVar(&o.kubeContext, "context", "", "context of the kubeconfig")
	registerOutput(command, &o.output)
	flags.StringVar(&o.snapshot, "snapshot", "", "recorded Proxmox, as numaform topology -o json prints it, instead of a live one")
}

// registerReport adds the flags that select how much of a change is printed.
func (o *options) registerReport(command *cobra.Command) {
	flags := command.Flags()
	flags.BoolVar(&o.diff, "diff", false, "show what is in the node files")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "show all: the node files, why each VM is where it is, and who owns which CPU before and after")
}

// registerChange adds the flags of a command that makes changes.
func (o *options) registerChange(command *cobra.Command) {
	o.register(command)
	flags := command.Flags()
	flags.BoolVar(&o.autoApprove, "auto-approve", false, "do not ask; what the guard denies or wants approved is still refused")
	flags.StringVar(&o.approve, "approve", "", "approve exactly the change of this digest, which plan prints, if the guard wants a person to")
	flags.BoolVar(&o.dryRun, "dry-run", false, "plan, check and show the change, and make nothing of it")
	// The command refuses it with a reason; hide it from help.
	flags.Lookup("snapshot").Hidden = true
}

func (o *options) check() error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	if len(o.files) > 0 && (o.kubeconfig != "" || o.kubeContext != "") {
		return usageError{errors.New("-f and --kubeconfig exclude each other: pods come from files or from a cluster")}
	}
	return nil
}

// checkLive refuses options that do not work with a recorded snapshot.
func (o *options) checkLive() error {
	if o.snapshot != "" {
		return usageError{errors.New("--snapshot is for plan: a change is made of what is in Proxmox now, so leave it out")}
	}
	return o.check()
}

// unnamed reports whether the command runs without a cluster. Then nothing is known about
// Nodes, and no VM is deleted.
func (o *options) unnamed() bool {
	return o.clusterless && len(o.files) == 0 && o.kubeconfig == "" && o.kubeContext == ""
}

// cluster reads the Kubernetes cluster.
func (o *options) cluster(ctx context.Context) (*scheduling.Cluster, error) {
	if o.own != nil {
		return o.own()
	}
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

// session holds the dependencies of one command.
type session struct {
	config   *operator.Config
	cluster  *scheduling.Cluster
	snapshot *topology.Snapshot
	scaler   *scaler.Scaler
}

// open reads configuration, cluster and Proxmox and creates the scaler. It writes nothing.
func open(ctx context.Context, process Process, o *options) (*session, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &session{}
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

	cluster := operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext}
	config, err := s.config.ScalerConfig(ctx, process.Environ, cluster, !o.noEngine)
	if err != nil {
		return nil, err
	}
	config.Regions = regions
	config.Actor = actor()
	config.Version = process.Version
	config.Notice = func(message string) { fmt.Fprintf(process.Stderr, "numaform: %s\n", message) }
	var mu sync.Mutex // hosts report at the same time
	config.Progress = func(host topology.HostID, message string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(process.Stderr, "%s: %s\n", host, message)
	}
	if !o.unnamed() {
		config.Drained = s.cluster.Drained
	}
	hasNodes, err := s.cluster.HasNodes(ctx)
	if err != nil {
		return nil, err
	}
	if !hasNodes {
		config.Blind = "its file was deleted, and without any Node in the manifests it is unknown what runs on it: " +
			"name the cluster with --kubeconfig, or restore the file and numaform remove it"
	}
	s.scaler = scaler.New(*config)
	if len(unread) > 0 {
		return s, s.standIn(ctx, unread)
	}
	return s, nil
}

// actor returns who runs numaform, for the fleet's history.
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

// live reads the clusters and sets their clients in regions. A region that does not
// respond is reported and does not stop the others: its hosts count as unreadable.
func live(ctx context.Context, process Process, config *operator.Config, regions []scaler.Region) (*topology.Snapshot, []operator.Unread, error) {
	clients, err := config.Connect()
	if err != nil {
		return nil, nil, err
	}
	snapshot, unread, err := config.Reachable(ctx, clients)
	if err != nil {
		return nil, nil, err
	}
	for _, region := range unread {
		fmt.Fprintf(process.Stderr, "numaform: region %s is left as it is: %v\n", region.Region, region.Err)
		delete(clients, region.Region)
	}
	for i := range regions {
		if client := clients[regions[i].Name]; client != nil {
			regions[i].Live = client
		}
	}
	return snapshot, unread, nil
}

// standIn adds the unreadable hosts of the fleet's VMs to the snapshot, with these VMs.
// The hosts are not known to be down: what Kubernetes says about their Nodes applies, and
// VMs without a Node count as joining.
func (s *session) standIn(ctx context.Context, unread []operator.Unread) error {
	current, _, err := s.scaler.Fleet(ctx)
	if err != nil {
		return err
	}
	var hosts []topology.Host
	for _, id := range current.AllHosts() {
		vms := vmsOn(&current, id)
		if len(vms) == 0 || s.snapshot.Host(id) != nil ||
			!slices.ContainsFunc(unread, func(u operator.Unread) bool { return u.Region == id.Region }) {
			continue
		}
		host := topology.Host{Region: id.Region, Name: id.Host, Online: true, Problem: "its region cannot be read now"}
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

// request returns the request for a decision on a fleet.
func (s *session) request(current *fleet.Fleet) (scheduling.Request, error) {
	types, err := s.config.InstanceTypes()
	return scheduling.Request{
		ClusterID: s.config.ClusterID,
		Snapshot:  s.snapshot,
		Existing:  current.VMs,
		Types:     types,
		Overlays:  true,
	}, err
}

// checkNotLost refuses an empty fleet while VMs of it run: the directory is wrong, or its
// files are lost, and the same VMs would be created again.
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
	// Files removed by a change, such as a revert of the first one, are a request.
	history, err := s.scaler.History(ctx, time.Time{})
	if err != nil || slices.ContainsFunc(history, func(e audit.Entry) bool { return e.Verified }) {
		return err
	}
	return fmt.Errorf("the fleet in %s is empty, and Proxmox runs %s of cluster %q, %s among them: nothing was changed: name the fleet's directory "+
		"or repository under fleet in numaform.yaml, or restore its files from version control; if they are lost for good, destroy these VMs "+
		"by hand, or choose another clusterID", s.config.FleetDir(), counted(len(names), "VM"), s.config.ClusterID, names[0])
}

// vmsOn returns the fleet's VMs on a host.
func vmsOn(f *fleet.Fleet, host topology.HostID) []fleet.VM {
	return slices.DeleteFunc(slices.Clone(f.VMs), func(vm fleet.VM) bool { return vm.Host != host })
}
