// Package seed gives new VMs what they join the cluster with, and takes it away
// again: a token for each NodeClaim, and a seed, the ISO image that the
// guest reads at its first boot, with the token in it. It also ends guests in good
// order before their VMs are destroyed. These are writes that no plan can hold; each
// is reported for the record, and none holds a secret.
//
// It does not approve certificate requests, which is internal/controllers/csr, and
// does not know what is in a seed, which is internal/bootstrap. Start at Seeder.Seed
// and Controller.Reconcile; DESIGN.md has the life of a seed.
package seed

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// AnnotationSeed says what became of the seed of a NodeClaim's VM: Attached or
// Removed.
const AnnotationSeed = v1alpha1.Group + "/seed"

// The values of AnnotationSeed.
const (
	// Attached is a seed that was uploaded and that the VM's guest may read.
	Attached = "attached"
	// Removed is a seed that is detached and deleted, with its token.
	Removed = "removed"
)

// Volumes keeps seeds on the hosts of a Proxmox cluster.
type Volumes interface {
	UploadSeed(ctx context.Context, host topology.HostName, volume string, files map[string][]byte) error
	AttachSeed(ctx context.Context, vm proxmox.Owned, volume string) error
	DetachSeed(ctx context.Context, vm proxmox.Owned, volume string) error
	DeleteSeed(ctx context.Context, host topology.HostName, volume string) error
	Seeds(ctx context.Context, host topology.HostName) ([]fleet.Seed, error)
}

// Power is what is asked of guests.
type Power interface {
	Running(ctx context.Context, vm proxmox.Owned) (bool, error)
	ShutDown(ctx context.Context, vm proxmox.Owned, timeout time.Duration) (proxmox.Shutdown, error)
}

// Agents asks and uses the agents of guests.
type Agents interface {
	Ping(ctx context.Context, vm proxmox.Owned) error
	Exec(ctx context.Context, vm proxmox.Owned, command proxmox.Command) error
}

// Proxmox is what is needed of a Proxmox cluster.
type Proxmox interface {
	Volumes
	Power
	Agents
}

var _ Proxmox = (*proxmox.Client)(nil)

// Region is a Proxmox cluster.
type Region struct {
	Proxmox Proxmox
	// VMIDs are those that VMs may get.
	VMIDs fleet.VMIDRange
	// Stop is how long a guest may take to shut down, and Upload how long a seed may
	// take to its storage; 0 means 2 minutes and 1 minute.
	Stop, Upload time.Duration
}

// Join is what the operator says about joining. What is empty is asked of the
// cluster.
type Join struct {
	// APIServer is the URL by which nodes reach the API server.
	APIServer string
	// CA holds the certificates that they trust it by, in PEM.
	CA []byte
	// CloudController is set where a cloud controller manager writes providerIDs.
	CloudController bool
	// ClusterDNS are the addresses of the cluster's DNS, and ClusterDomain is its
	// domain.
	ClusterDNS    []string
	ClusterDomain string
}

// Cluster is how the Kubernetes cluster is reached.
type Cluster struct {
	// Client reads NodeClaims, Nodes and classes, from a cache or not, and writes.
	Client client.Client
	// Live reads past every cache: Secrets are never cached.
	Live client.Reader
	// REST is what numaform itself logs in with.
	REST *rest.Config
	// Version returns the API server's version, such as v1.35.1.
	Version func() (string, error)
	// Namespace is numaform's own, and Account the ServiceAccount in it that nodes join
	// as.
	Namespace, Account string
	// BootstrapTokens is set where numaform may keep bootstrap tokens in kube-system.
	BootstrapTokens bool
	Join            Join
}

// Config is what a Seeder works with.
type Config struct {
	ClusterID string
	Cluster   Cluster
	Regions   map[topology.RegionName]Region
	// VMs returns the VMs that are wanted or still being removed. It reports false
	// until the fleet was read: then nothing is deleted for want of a VM.
	VMs func() (vms []fleet.VM, known bool)
	// Snapshot returns Proxmox as it was a moment ago.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Types are the instance types that nodes are made of.
	Types []scheduling.InstanceType
	// ClaimWait is how long Seed waits for the NodeClaim of a VM that was placed a
	// moment ago; 0 means 20 s.
	ClaimWait time.Duration
	// Record keeps lines about writes that no change of the fleet holds; nil leaves
	// them to the log.
	Record func(ctx context.Context, written []string)
	Clock  clock.Clock
}

const (
	// defaultClaimWait is long: the claim is made right after the VM got its place.
	defaultClaimWait = 20 * time.Second
	defaultStop      = 2 * time.Minute
	defaultUpload    = time.Minute
)

// Seeder makes seeds and tokens. It may be used by several goroutines.
type Seeder struct {
	config Config
}

var _ scaler.Guests = (*Seeder)(nil)

// New returns a seeder. It reaches nothing.
func New(config Config) *Seeder {
	if config.ClaimWait == 0 {
		config.ClaimWait = defaultClaimWait
	}
	if config.Record == nil {
		config.Record = func(context.Context, []string) {}
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Seeder{config: config}
}

// region returns the Proxmox cluster that a host is of.
func (s *Seeder) region(host topology.HostID) (Region, error) {
	region, ok := s.config.Regions[host.Region]
	if !ok {
		return Region{}, fmt.Errorf("finding host %s: numaform.yaml has no region %q", host, host.Region)
	}
	region.Stop, region.Upload = cmp.Or(region.Stop, defaultStop), cmp.Or(region.Upload, defaultUpload)
	return region, nil
}

// owned says by what a VM is known where it is now: people move VMs.
func (s *Seeder) owned(ctx context.Context, vm *fleet.VM) proxmox.Owned {
	owned := proxmox.OwnedBy(s.config.ClusterID, vm)
	snapshot, err := s.config.Snapshot(ctx)
	if err != nil {
		return owned // it is looked for where it was made
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if host.Region != vm.Host.Region {
			continue
		}
		for _, guest := range host.Guests {
			if guest.VMID == int(vm.VMID) && guest.ClusterID == s.config.ClusterID && guest.Key == string(vm.Key) {
				owned.Host = host.Name
			}
		}
	}
	return owned
}
