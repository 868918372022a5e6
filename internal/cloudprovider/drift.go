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

// The reasons for replacing a Node within its pool's budgets.
const (
	// DriftClass means that the ProxmoxNodeClass changed in a field that defines its
	// nodes.
	DriftClass karpenter.DriftReason = "NodeClassDrift"
	// DriftImage means that the template on the VM's host was replaced.
	DriftImage karpenter.DriftReason = "ImageDrift"
	// DriftHost means that the VM runs on a host other than its Node's zone.
	DriftHost karpenter.DriftReason = "HostMoved"
	// DriftNotAllowed means that the ProxmoxNodeClass no longer allows the VM's host.
	DriftNotAllowed karpenter.DriftReason = "HostNotAllowed"
	// DriftRequested means that a user requested the replacement by an annotation.
	DriftRequested karpenter.DriftReason = "ReplacementRequested"
	// DriftEvacuated means that the VM's host is being evacuated.
	DriftEvacuated karpenter.DriftReason = "HostEvacuated"
)

// IsDrifted returns why a NodeClaim's node has to be replaced, or "". Missing
// information, such as the template of a host that is down, is not a reason.
func (c *CloudProvider) IsDrifted(ctx context.Context, claim *karpv1.NodeClaim) (reason karpenter.DriftReason, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("checking NodeClaim %s for drift: %w", claim.Name, translate(err))
		}
	}()
	class, err := c.class(ctx, claim)
	if err != nil {
		return "", err
	}
	snapshot, err := c.config.Recent(ctx)
	if err != nil {
		return "", fmt.Errorf("reading Proxmox: %w", err)
	}

	// home is the host on which the VM was created.
	home := topology.HostID{
		Region: topology.RegionName(claim.Labels[corev1.LabelTopologyRegion]),
		Host:   topology.HostName(claim.Labels[corev1.LabelTopologyZone]),
	}
	switch {
	case claim.Annotations[v1alpha1.AnnotationReplace] == "true":
		return DriftRequested, nil
	case class != nil && otherClass(claim, class):
		return DriftClass, nil
	case class != nil && c.otherImage(claim, class, snapshot):
		return DriftImage, nil
	case c.view(snapshot).left(claim, home):
		return DriftHost, nil
	case class != nil && home.Host != "" && !scheduling.Allows(class, home):
		return DriftNotAllowed, nil
	case slices.Contains(c.config.Evacuated(), home):
		return DriftEvacuated, nil
	}
	return "", nil
}

// hashes returns the annotations that record the class from which a VM was created.
func hashes(class *v1alpha1.ProxmoxNodeClass) map[string]string {
	if class == nil {
		return nil
	}
	return map[string]string{
		v1alpha1.AnnotationClassHash:        scheduling.ClassHash(class),
		v1alpha1.AnnotationClassHashVersion: scheduling.ClassHashVersion,
	}
}

// otherClass reports whether the class changed in a field that defines its nodes. It
// ignores hashes of another version of numaform, so that no upgrade replaces nodes.
func otherClass(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) bool {
	now := hashes(class)
	was := claim.Annotations[v1alpha1.AnnotationClassHash]
	return was != "" && claim.Annotations[v1alpha1.AnnotationClassHashVersion] == now[v1alpha1.AnnotationClassHashVersion] &&
		was != now[v1alpha1.AnnotationClassHash]
}

// otherImage reports whether the host of a VM would now clone a different template.
func (c *CloudProvider) otherImage(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot) bool {
	host, vmid, ok := parseImage(claim.Status.ImageID)
	if !ok {
		return false
	}
	type templatesKey struct{ class, version string }
	templates, _ := memoized(&c.memo, snapshot, templatesKey{class.Name, class.ResourceVersion}, func() (map[topology.HostID]scheduling.HostTemplate, error) {
		return scheduling.EvaluateClass(class, snapshot, c.config.ClusterID, c.config.Types).Templates, nil
	})
	template, known := templates[host]
	return known && fleet.VMID(template.VMID) != vmid
}

// parseImage is the inverse of scheduling.ImageID.
func parseImage(id string) (topology.HostID, fleet.VMID, bool) {
	var host topology.HostID
	i := strings.LastIndex(id, "/")
	if i < 0 || host.UnmarshalText([]byte(id[:i])) != nil {
		return host, 0, false
	}
	vmid, err := strconv.Atoi(id[i+1:])
	return host, fleet.VMID(vmid), err == nil
}
