package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/topology"
)

// Fault is what one host lacks for a class: Message completes a sentence that begins with
// the host's name, Mend says how to fix it.
type Fault struct {
	Host topology.HostID
	Finding
	Mend string
}

// Faults returns what the class's allowed hosts lack for it, sorted by host. It makes the
// same checks as Judge, and returns none for an invalid class.
func Faults(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot, clusterID string, types []InstanceType) []Fault {
	c := newClass(nc, snapshot, clusterID, OfferedBy(nc, types))
	if c.invalid() {
		return nil
	}
	var faults []Fault
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if !Allows(nc, host.ID()) {
			continue
		}
		_, found := c.faultsOf(host, snapshot)
		for _, f := range found {
			faults = append(faults, Fault{Host: f.host, Finding: f.Finding, Mend: f.advice()})
		}
	}
	return faults
}

// Needs is what the VMs of a class need on a suitable host, beyond what a snapshot shows.
type Needs struct {
	// Disks are the storages of their disks, sorted.
	Disks []string
	// Seed is the storage of their seeds, or fleet.AnySeedStorage, or empty.
	Seed string
	// Template is the VMID of their template.
	Template int
}

// NeedsOf returns what VMs of a class need on a host, and false if the host cannot take
// any for a reason other than its host agent.
func NeedsOf(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot, host topology.HostID) (Needs, bool) {
	c := newClass(nc, snapshot, "", nil)
	from, ok := c.templates[host]
	if !ok {
		return Needs{}, false
	}
	return Needs{Disks: slices.Sorted(maps.Keys(diskNeeds(&c.base, from.Storage, 0))), Seed: c.base.SeedStorage, Template: from.VMID}, true
}

// Secret returns the content of a Secret. Secrets are read only on request.
func (c *Cluster) Secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	if c.err != nil {
		return nil, c.err
	}
	reader := client.Reader(c.client)
	if c.config != nil {
		live, err := client.New(c.config, client.Options{})
		if err != nil {
			return nil, fmt.Errorf("reaching the cluster: %w", err)
		}
		reader = live
	}
	var secret corev1.Secret
	if err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
		return nil, fmt.Errorf("reading secret %s/%s: %w", namespace, name, err)
	}
	data := map[string][]byte{}
	maps.Copy(data, secret.Data)
	for key, text := range secret.StringData { // from a manifest
		data[key] = []byte(text)
	}
	return data, nil
}

// NodeClasses returns the cluster's ProxmoxNodeClasses, sorted by name.
func (c *Cluster) NodeClasses(ctx context.Context) ([]v1alpha1.ProxmoxNodeClass, error) {
	if c.err != nil {
		return nil, c.err
	}
	var list v1alpha1.ProxmoxNodeClassList
	if err := c.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("reading node classes: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.ProxmoxNodeClass) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items, nil
}
