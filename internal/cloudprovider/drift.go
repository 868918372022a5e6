package cloudprovider

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// The reasons for which a Node is replaced under its pool's budgets.
const (
	// DriftClass: the ProxmoxNodeClass changed in what its nodes are made of.
	DriftClass karpenter.DriftReason = "NodeClassDrift"
	// DriftImage: the template on the VM's host is another.
	DriftImage karpenter.DriftReason = "ImageDrift"
	// DriftHost: the VM runs on another host than its Node's zone says.
	DriftHost karpenter.DriftReason = "HostMoved"
	// DriftNotAllowed: the ProxmoxNodeClass does not allow the VM's host any more.
	DriftNotAllowed karpenter.DriftReason = "HostNotAllowed"
	// DriftEvacuated: the VM's host is to be left.
	DriftEvacuated karpenter.DriftReason = "HostEvacuated"
)

// IsDrifted says why a NodeClaim's node has to be replaced, or nothing. What is not
// known, such as the template of a host that is down, is no reason.
func (c *CloudProvider) IsDrifted(ctx context.Context, claim *karpv1.NodeClaim) (karpenter.DriftReason, error) {
	reason, err := c.drift(ctx, claim)
	if err != nil {
		return "", fmt.Errorf("comparing nodeclaim %s: %w", claim.Name, translate(err))
	}
	return reason, nil
}

func (c *CloudProvider) drift(ctx context.Context, claim *karpv1.NodeClaim) (karpenter.DriftReason, error) {
	class, err := c.class(ctx, claim)
	if err != nil {
		return "", err
	}
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		return "", fmt.Errorf("reading Proxmox: %w", err)
	}
	evacuated, err := c.config.Evacuated(ctx)
	if err != nil {
		return "", fmt.Errorf("reading which hosts are evacuated: %w", err)
	}
	home := homeOf(claim)
	moved := look(snapshot, c.config.ClusterID).left(keyOf(claim), home)
	if class != nil {
		if reason := c.classDrift(claim, class, snapshot); reason != "" {
			return reason, nil
		}
	}
	switch {
	case moved:
		return DriftHost, nil
	case class != nil && home.Host != "" && !scheduling.Allows(class, home):
		return DriftNotAllowed, nil
	case slices.Contains(evacuated, home):
		return DriftEvacuated, nil
	}
	return "", nil
}

// classDrift compares a VM with what its class would make now.
func (c *CloudProvider) classDrift(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot) karpenter.DriftReason {
	switch {
	case otherClass(claim, class):
		return DriftClass
	case c.otherImage(claim, class, snapshot):
		return DriftImage
	}
	return ""
}

// homeOf returns the host that a NodeClaim's VM was made on.
func homeOf(claim *karpv1.NodeClaim) topology.HostID {
	return topology.HostID{
		Region: topology.RegionName(claim.Labels[corev1.LabelTopologyRegion]),
		Host:   topology.HostName(claim.Labels[corev1.LabelTopologyZone]),
	}
}

// hashes returns the annotations that say of what class a VM was made.
func hashes(class *v1alpha1.ProxmoxNodeClass) map[string]string {
	if class == nil {
		return nil
	}
	return map[string]string{
		v1alpha1.AnnotationClassHash:        scheduling.ClassHash(class),
		v1alpha1.AnnotationClassHashVersion: scheduling.ClassHashVersion,
	}
}

// otherClass reports whether the class changed in what its nodes are made of. A hash
// of another version of numaform says nothing: no upgrade replaces nodes.
func otherClass(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) bool {
	now := hashes(class)
	was := claim.Annotations[v1alpha1.AnnotationClassHash]
	return was != "" && claim.Annotations[v1alpha1.AnnotationClassHashVersion] == now[v1alpha1.AnnotationClassHashVersion] &&
		was != now[v1alpha1.AnnotationClassHash]
}

// otherImage reports whether the host that a VM was made on would clone another
// template by now.
func (c *CloudProvider) otherImage(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot) bool {
	host, vmid, ok := parseImage(claim.Status.ImageID)
	if !ok {
		return false
	}
	template, known := scheduling.Judge(class, snapshot, c.config.ClusterID, c.config.Types).Templates[host]
	return known && fleet.VMID(template.VMID) != vmid
}

// parseImage is the reverse of scheduling.ImageID.
func parseImage(id string) (topology.HostID, fleet.VMID, bool) {
	var host topology.HostID
	i := strings.LastIndex(id, "/")
	if i < 0 || host.UnmarshalText([]byte(id[:i])) != nil {
		return host, 0, false
	}
	vmid, err := strconv.Atoi(id[i+1:])
	return host, fleet.VMID(vmid), err == nil
}
