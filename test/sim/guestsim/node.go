package guestsim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// uninitialized is the taint of a node that waits for its cloud controller manager.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// statusPeriod is the interval at which kubelet reports an unchanged status.
const statusPeriod = 5 * time.Minute

// register creates the Node, or updates the status of an existing Node with this name.
func (k *kubelet) register(ctx context.Context) error {
	node, err := k.node()
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	k.registered = k.clock.Now()
	if apierrors.IsAlreadyExists(err) {
		err = k.patchStatus(ctx)
	}
	if err != nil {
		return fmt.Errorf("registering node %s: %w", k.NodeName, err)
	}
	return k.machine.guests.cloudProvider(ctx, k)
}

// node returns the Node as kubelet registers it.
func (k *kubelet) node() (*corev1.Node, error) {
	status, err := k.status()
	if err != nil {
		return nil, err
	}
	labels := map[string]string{
		corev1.LabelHostname: k.NodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
	}
	maps.Copy(labels, k.flags.labels)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: k.NodeName, Labels: labels,
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec:   corev1.NodeSpec{ProviderID: k.config.ProviderID, Taints: k.config.RegisterWithTaints},
		Status: status,
	}
	if k.flags.providerID != "" {
		node.Spec.ProviderID = k.flags.providerID
	}
	if k.flags.external {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: uninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	}
	return node, nil
}

func (k *kubelet) status() (corev1.NodeStatus, error) {
	whole, err := Capacity(k.machine.vm.Config, &k.config)
	if err != nil {
		return corev1.NodeStatus{}, err
	}
	left, err := Allocatable(whole, &k.config)
	if err != nil {
		return corev1.NodeStatus{}, fmt.Errorf("starting kubelet: %s: %w", configFile, err)
	}
	_, uuid, _ := strings.Cut(k.machine.vm.Config["smbios1"], "uuid=")
	uuid, _, _ = strings.Cut(uuid, ",")
	return corev1.NodeStatus{
		Capacity: whole, Allocatable: left, Conditions: k.conditions(), Addresses: k.addresses(),
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: strings.ReplaceAll(uuid, "-", ""), SystemUUID: uuid, BootID: uuid, KernelVersion: "6.12.48+deb13-amd64",
			OSImage: "Debian GNU/Linux 13 (trixie)", ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: kubeletVersion,
			OperatingSystem: "linux", Architecture: "amd64",
		},
	}, nil
}

// addresses returns the addresses that kubelet reports. With a cloud controller manager,
// which sets the addresses, it reports only its hostname unless --node-ip is set.
func (k *kubelet) addresses() []corev1.NodeAddress {
	if k.flags.external && k.flags.nodeIP == "" {
		return []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: k.NodeName}}
	}
	return []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: k.ip()}, {Type: corev1.NodeHostName, Address: k.NodeName},
	}
}

// ip returns the node's address: its static address, or the address that its guest agent
// reports.
func (k *kubelet) ip() string {
	if k.address != "" {
		return k.address
	}
	id := k.machine.id
	return fmt.Sprintf("10.%d.%d.%d", id>>16&255, id>>8&255, id&255)
}

func (k *kubelet) conditions() []corev1.NodeCondition {
	now := metav1.NewTime(k.clock.Now())
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason, Message: message,
			LastHeartbeatTime: now, LastTransitionTime: metav1.NewTime(k.registered),
		}
	}
	ready := condition(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", "container runtime network not ready")
	if k.ready {
		ready = condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status")
		ready.LastTransitionTime = now
	}
	return []corev1.NodeCondition{
		condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		ready,
	}
}

// patchStatus reports the whole status.
func (k *kubelet) patchStatus(ctx context.Context) error {
	status, err := k.status()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	if _, err := k.client.CoreV1().Nodes().PatchStatus(ctx, k.NodeName, patch); err != nil {
		return fmt.Errorf("reporting the status of node %s: %w", k.NodeName, err)
	}
	k.reported = k.clock.Now()
	return nil
}

// keepStatus reports the status if the Node's Ready condition differs from kubelet's, which
// happens after the controllers missed a heartbeat, and otherwise periodically.
func (k *kubelet) keepStatus(ctx context.Context) error {
	node, err := k.client.CoreV1().Nodes().Get(ctx, k.NodeName, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("reading node %s: %w", k.NodeName, err)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && (condition.Status == corev1.ConditionTrue) == k.ready && k.clock.Since(k.reported) < statusPeriod {
			return nil
		}
	}
	return k.patchStatus(ctx)
}

// cloudProvider acts as a cloud controller manager. It does not use the node's credentials.
func (g *Guests) cloudProvider(ctx context.Context, k *kubelet) error {
	if g.cfg.CloudProviderID == nil || !k.flags.external {
		return nil
	}
	node, err := g.admin.CoreV1().Nodes().Get(ctx, k.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var taints []corev1.Taint
	for _, taint := range node.Spec.Taints {
		if taint.Key != uninitialized {
			taints = append(taints, taint)
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"providerID": g.cfg.CloudProviderID(k.machine.vm), "taints": taints},
	})
	if err != nil {
		return err
	}
	_, err = g.admin.CoreV1().Nodes().Patch(ctx, k.NodeName, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
