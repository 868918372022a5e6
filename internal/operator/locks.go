package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// StateLock is the lock of a host's state.
type StateLock struct {
	Host topology.HostID
	state.LockInfo
}

// locksWithin limits how long reading the Leases may take.
const locksWithin = 10 * time.Second

// StateLocks returns the held locks of a fleet's states. It reads them without an engine.
// unknown is the reason why they cannot be read, or "": only the engine can read the locks
// of most backends.
func (c *Config) StateLocks(ctx context.Context, environ []string, cluster Kubeconfig, current *fleet.Fleet) (locks []StateLock, unknown string) {
	backend := &c.Fleet.Backend
	hosts := current.AllHosts()
	var err error
	switch {
	case len(hosts) == 0:
	case backend.Type == "local" && backend.Config["path"] == "":
		locks, err = c.localLocks(hosts)
	case backend.Type == "kubernetes" && !c.hasOwnLogin(environ):
		locks, err = c.leases(ctx, environ, cluster, hosts)
	case backend.Type == "kubernetes":
		return nil, "the settings of the backend or KUBE_* variables select the cluster of the states"
	case backend.Type == "local":
		return nil, "the states are files outside of state_dir"
	default:
		return nil, "only the engine can read locks of the backend " + backend.Type
	}
	if err != nil {
		return nil, err.Error()
	}
	return locks, ""
}

// localLocks returns the locks of states that are files below the state directory.
func (c *Config) localLocks(hosts []topology.HostID) ([]StateLock, error) {
	dir, err := c.StatePath()
	if err != nil {
		return nil, err
	}
	var locks []StateLock
	for _, host := range hosts {
		held, err := state.HeldLocally(scaler.StateFile(dir, host))
		if err != nil {
			return nil, err
		}
		if held != nil {
			locks = append(locks, StateLock{Host: host, LockInfo: *held})
		}
	}
	return locks, nil
}

// leases returns the locks of states in Kubernetes, which are Leases with a holder.
func (c *Config) leases(ctx context.Context, environ []string, cluster Kubeconfig, hosts []topology.HostID) ([]StateLock, error) {
	client, err := c.leasesOf(environ, cluster)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, locksWithin)
	defer cancel()
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the Leases in namespace %s: %w", c.statesNamespace(environ), err)
	}
	names := map[string]topology.HostID{}
	for _, host := range hosts {
		names[state.LeasePrefix+generator.StateName(c.ClusterID, host)] = host
	}
	var locks []StateLock
	for i := range list.Items {
		lease := &list.Items[i]
		host, ours := names[lease.Name]
		if holder := lease.Spec.HolderIdentity; !ours || holder == nil || *holder == "" {
			continue
		}
		lock := StateLock{Host: host, LockInfo: state.LockInfo{ID: *lease.Spec.HolderIdentity, Created: lease.CreationTimestamp.Time}}
		if held, err := state.ParseLockInfo([]byte(lease.Annotations[state.LeaseInfo])); err == nil {
			lock.LockInfo = *held
		}
		locks = append(locks, lock)
	}
	slices.SortFunc(locks, func(a, b StateLock) int { return a.Host.Compare(b.Host) })
	return locks, nil
}

// statesNamespace returns the namespace of states in Kubernetes.
func (c *Config) statesNamespace(environ []string) string {
	return cmp.Or(c.Fleet.Backend.Config["namespace"], lookup(environ, "KUBE_NAMESPACE"), metav1.NamespaceDefault)
}

// leasesOf returns a client for the Leases in the namespace of the states.
func (c *Config) leasesOf(environ []string, cluster Kubeconfig) (coordination.LeaseInterface, error) {
	config, err := cluster.Load()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.CoordinationV1().Leases(c.statesNamespace(environ)), nil
}

// DeleteLease deletes a Lease in the namespace of the states, which must still have the
// holder.
func (c *Config) DeleteLease(ctx context.Context, environ []string, cluster Kubeconfig, name, holder string) error {
	if c.hasOwnLogin(environ) {
		return fmt.Errorf("the settings of the backend or KUBE_* variables select the cluster of the states: delete the Lease %s in that cluster", name)
	}
	client, err := c.leasesOf(environ, cluster)
	if err != nil {
		return err
	}
	lease, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading Lease %s/%s: %w", c.statesNamespace(environ), name, err)
	}
	if now := ptr.Deref(lease.Spec.HolderIdentity, ""); now != holder {
		return fmt.Errorf("the holder of Lease %s/%s is now %q, not %q: the lock has changed and was not released", lease.Namespace, name, now, holder)
	}
	err = client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}})
	if err != nil {
		return fmt.Errorf("deleting Lease %s/%s: %w", lease.Namespace, name, err)
	}
	return nil
}
