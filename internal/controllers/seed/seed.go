// Package seed creates and removes the credentials with which new VMs join the cluster: a
// token for each NodeClaim, and a seed, the ISO image with that token that the guest reads
// at first boot. It also runs join commands in guests, and shuts guests down before their
// VMs are destroyed. These writes are not part of any plan. Writes to Proxmox are reported,
// without secrets, so that they can be recorded.
//
// It does not approve certificate requests (see internal/controllers/csr), and does not
// define the content of a seed (see internal/bootstrap). Start at Seeder.Seed and
// Controller.Reconcile; DESIGN.md describes the life of a seed.
package seed

import (
	"cmp"
	"context"
	"fmt"
	"sync"
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

// AnnotationSeed is the state of the seed of a NodeClaim's VM: Attached or Removed.
const AnnotationSeed = v1alpha1.Group + "/seed"

// The values of AnnotationSeed.
const (
	// Attached means that the seed was uploaded and the VM's guest may read it.
	Attached = "attached"
	// Removed means that the seed is detached and deleted, with its token.
	Removed = "removed"
)

// Region is a Proxmox cluster.
type Region struct {
	Proxmox *proxmox.Client
	// VMIDs is the range of the VMs' VMIDs.
	VMIDs fleet.VMIDRange
	// Stop limits a guest's shutdown, and Upload the upload of a seed; 0 means 2 minutes
	// and 1 minute.
	Stop, Upload time.Duration
}

// Join is the operator's configuration for joining. If APIServer, CA or ClusterDNS is
// empty, it is read from the cluster.
type Join struct {
	// APIServer is the URL of the API server for nodes.
	APIServer string
	// CA contains the API server's CA certificates, in PEM.
	CA []byte
	// CloudController is set if a cloud controller manager sets providerIDs.
	CloudController bool
	// ClusterDNS are the addresses of the cluster's DNS, and ClusterDomain is its
	// domain.
	ClusterDNS    []string
	ClusterDomain string
}

// Cluster is the connection to the Kubernetes cluster.
type Cluster struct {
	// Client reads NodeClaims, Nodes and classes, cached or not, and writes.
	Client client.Client
	// Live bypasses every cache: Secrets are never cached.
	Live client.Reader
	// REST is numaform's own client configuration.
	REST *rest.Config
	// Version returns the API server's version, such as v1.35.1.
	Version func() (string, error)
	// Namespace is numaform's namespace, and Account the ServiceAccount in it that nodes
	// join as.
	Namespace, Account string
	// BootstrapTokens is set if numaform may create bootstrap tokens in kube-system.
	BootstrapTokens bool
	Join            Join
}

// Config configures a Seeder.
type Config struct {
	ClusterID string
	Cluster   Cluster
	Regions   map[topology.RegionName]Region
	// VMs returns the VMs that are desired or still being removed. known is false until the
	// fleet has been read; until then, no seed is deleted because its VM is missing.
	VMs func() (vms []fleet.VM, known bool)
	// VM is like VMs for a single VM, which is nil if none has the key. It is separate
	// because each event of a NodeClaim looks up its VM.
	VM func(key fleet.Key) (vm *fleet.VM, known bool)
	// Snapshot returns a recent snapshot of Proxmox.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Types are the instance types of nodes.
	Types []scheduling.InstanceType
	// ClaimWait is how long Seed waits for the NodeClaim of a recently placed VM; 0 means
	// 20 s.
	ClaimWait time.Duration
	// Record stores lines about writes that no change of the fleet contains.
	Record func(ctx context.Context, written []string)
	Clock  clock.Clock
}

const (
	// defaultClaimWait is generous: the claim is created right after the VM is placed.
	defaultClaimWait = 20 * time.Second
	defaultStop      = 2 * time.Minute
	defaultUpload    = time.Minute
)

// Seeder creates seeds and tokens. It is safe for concurrent use.
type Seeder struct {
	config Config

	// mu guards the fields below it.
	mu sync.Mutex
	// known are facts for the check of classes, read at knownAt.
	known   facts
	knownAt time.Time
}

var _ scaler.Guests = (*Seeder)(nil)

// New returns a seeder. It does no I/O.
func New(config Config) *Seeder {
	if config.ClaimWait == 0 {
		config.ClaimWait = defaultClaimWait
	}
	return &Seeder{config: config}
}

// region returns a host's Proxmox cluster.
func (s *Seeder) region(host topology.HostID) (Region, error) {
	region, ok := s.config.Regions[host.Region]
	if !ok {
		return Region{}, fmt.Errorf("finding host %s: numaform.yaml has no region %q: add it under clusters", host, host.Region)
	}
	region.Stop, region.Upload = cmp.Or(region.Stop, defaultStop), cmp.Or(region.Upload, defaultUpload)
	return region, nil
}

// owned returns the identity of a VM on its current host, which may differ from its planned
// host because users migrate VMs.
func (s *Seeder) owned(ctx context.Context, vm *fleet.VM) proxmox.Owned {
	owned := proxmox.OwnedBy(s.config.ClusterID, vm)
	snapshot, err := s.config.Snapshot(ctx)
	if err != nil {
		return owned // fall back to the planned host
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		for _, guest := range host.Guests {
			if vm.IsGuest(s.config.ClusterID, host.Region, &guest) {
				owned.Host = host.Name
			}
		}
	}
	return owned
}
