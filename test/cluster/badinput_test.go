package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// badClass is a NodeClass that cannot create nodes, and its expected messages.
type badClass struct {
	name, spec, condition, reason string
	// words must be in the message of the condition, and in the event on a pod that needs a
	// node of the class.
	words []string
}

func badClasses() []badClass {
	return []badClass{
		{
			"template", "  template: {name: no-such-template}\n  metadata: {type: cdrom}",
			v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateNotFound,
			[]string{"no-such-template", "create the template there, or correct spec.template"},
		},
		{
			"storage", soundClass() + "\n  bootDevice: {storage: no-such-storage}",
			v1alpha1.ConditionPlacementReady, v1alpha1.ReasonStorageNotFound,
			[]string{"no-such-storage", "correct spec.bootDevice.storage"},
		},
		{
			"respool", soundClass() + "\n  pool: no-such-pool",
			v1alpha1.ConditionPlacementReady, v1alpha1.ReasonPoolNotFound,
			[]string{"no-such-pool", "correct spec.pool"},
		},
		{
			"agentless", soundClass() + "\n  hosts: [pve-2]\n  placement: {policy: Dedicated, pinWith: HostAgent}",
			v1alpha1.ConditionPlacementReady, v1alpha1.ReasonHostAgentNotReady,
			[]string{"pve-2 has a numaform-agent that has published nothing for 20m", "systemctl status numaform-agent"},
		},
		{
			"seedless", seededBy("no-such-secret"),
			v1alpha1.ConditionMetadataReady, v1alpha1.ReasonSecretNotFound,
			[]string{"spec.metadata.templatesRef", "numaform/no-such-secret", "create it"},
		},
		{
			"yaml", seededBy("no-yaml"),
			v1alpha1.ConditionMetadataReady, v1alpha1.ReasonTemplatesInvalid,
			[]string{"no-yaml", "user-data", "line 3 of the result"},
		},
		{
			"value", seededBy("no-value"),
			v1alpha1.ConditionMetadataReady, v1alpha1.ReasonTemplatesInvalid,
			[]string{"no-value", "user-data", "line 2 of the template", `key "proxy" does not exist`},
		},
	}
}

// seededBy returns the spec of a class whose seeds are rendered from the templates in a
// Secret.
func seededBy(secret string) string {
	return fmt.Sprintf("  template: {name: %s}\n  metadata: {type: cdrom, templatesRef: {name: %s}}", testenv.Template, secret)
}

// secret creates a Secret in numaform's namespace.
func (w *world) secret(name string, data map[string]string) {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: data}
	if err := w.api.Create(context.Background(), secret); err != nil {
		w.t.Fatal(err)
	}
}

// TestBadClasses checks that classes that cannot create nodes report the reason in their
// status, that events on pending pods name the problem of their class or pool, that no VM
// is created for these pods, and that a pod runs once its class is fixed.
func TestBadClasses(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.secret("no-yaml", map[string]string{"user-data": "#cloud-config\nruncmd: []\n\tpackages: []\n"})
	w.secret("no-value", map[string]string{"user-data": "#cloud-config\nproxy: {{ .Values.proxy }}\n"})
	// numaform can detect a missing resource pool only if at least one pool is visible to
	// it.
	if err := w.proxmox.PutGuest(pvesim.Guest{VMID: 500, Host: "pve-1", Pool: "others"}); err != nil {
		t.Fatal(err)
	}
	if err := hostagent.Stop(w.proxmox, "pve-2", 20*time.Minute); err != nil {
		t.Fatal(err)
	}
	w.start()
	for _, bad := range badClasses() {
		w.steadyClass(bad.name, bad.spec)
		w.steadyPool(bad.name, bad.name, anyType, "")
	}
	w.steadyClass("sound", soundClass())
	w.steadyPool("notype", "sound", `      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [x9.64VCPU-512GB]}`, "")
	w.steadyPool("nozone", "sound", `      requirements:
      - {key: topology.kubernetes.io/zone, operator: In, values: [pve-9]}`, "")
	w.steadyPool("limited", "sound", anyType, "  limits: {cpu: 1}")
	for _, bad := range badClasses() {
		w.classSays(bad)
		w.poolIsNotReady(bad)
		w.pods(bad.name, 1, "500m", "256Mi", inPool(bad.name))
	}
	w.pods("notype", 1, "500m", "256Mi", inPool("notype"))
	w.pods("nozone", 1, "500m", "256Mi", inPool("nozone"))
	w.pods("limited", 1, "700m", "256Mi", inPool("limited"))
	for _, bad := range badClasses() {
		w.notified("Pod", bad.name+"-00", time.Minute, bad.words...)
		w.notified("ProxmoxNodeClass", bad.name, time.Minute, bad.words...)
	}
	w.notified("Pod", "notype-00", time.Minute, "node.kubernetes.io/instance-type", "x9.64VCPU-512GB")
	w.notified("Pod", "nozone-00", time.Minute, "topology.kubernetes.io/zone", "pve-9", "pve-1, pve-2")
	w.running("limited", 1, 2*time.Minute)
	w.pods("more", 1, "700m", "256Mi", inPool("limited"))
	w.notified("Pod", "more-00", time.Minute, "limit of cpu 1 leaves no room for another node (1 used)", "raise spec.limits")
	if vms := w.ours(); len(vms) != 1 {
		t.Errorf("VMs %v, want the one of pool limited", slices.Sorted(maps.Keys(vms)))
	}
	// An empty Secret is valid: missing keys use the defaults.
	w.secret("no-such-secret", nil)
	w.running("seedless", 1, 2*time.Minute)
}

// classSays waits until the conditions of a bad class contain its reason and words.
func (w *world) classSays(bad badClass) {
	w.t.Helper()
	w.eventually(time.Minute, func(ctx context.Context) string {
		class := &v1alpha1.ProxmoxNodeClass{}
		if err := w.api.Get(ctx, client.ObjectKey{Name: bad.name}, class); err != nil {
			return err.Error()
		}
		found := class.StatusConditions().Get(bad.condition)
		if !found.IsFalse() || found.Reason != bad.reason || !saysAll(found.Message, bad.words) {
			return fmt.Sprintf("class %s has condition %+v, want %s False for %s with %q", bad.name, found, bad.condition, bad.reason, bad.words)
		}
		if ready := class.StatusConditions().Get(status.ConditionReady); !ready.IsFalse() || !saysAll(ready.Message, bad.words) {
			return fmt.Sprintf("class %s has condition %+v, want it not Ready, with %q", bad.name, ready, bad.words)
		}
		return ""
	})
}

// poolIsNotReady waits until the pool of a bad class reports why it is not ready.
func (w *world) poolIsNotReady(bad badClass) {
	w.t.Helper()
	w.eventually(time.Minute, func(ctx context.Context) string {
		pool := &karpv1.NodePool{}
		if err := w.api.Get(ctx, client.ObjectKey{Name: bad.name}, pool); err != nil {
			return err.Error()
		}
		class := pool.StatusConditions().Get(karpv1.ConditionTypeNodeClassReady)
		if ready := pool.StatusConditions().Get(status.ConditionReady); !ready.IsFalse() || !class.IsFalse() || !saysAll(class.Message, bad.words) {
			return fmt.Sprintf("pool %s has conditions %+v and %+v, want it not Ready for %q", bad.name, ready, class, bad.words)
		}
		return ""
	})
}

// prefers makes a pod prefer a host.
func prefers(host string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{host}},
				}},
			}},
		}}
	}
}

// TestHostDown checks that pods run on other hosts if a host goes off the network while it
// clones their VMs, that nothing on this host is removed, and that everything is consistent
// once the host is back.
func TestHostDown(t *testing.T) {
	const host = "pve-2"
	w := newWorld(t, worldConfig{hosts: threeHosts(t)})
	w.start()
	w.steadyClass("plain", soundClass())
	w.steadyPool("workers", "plain", anyType, "")
	w.pods("old", 1, "500m", "256Mi", onHost(host))
	w.running("old", 1, 2*time.Minute)
	w.initialized(time.Minute)
	old := slices.Collect(maps.Keys(w.ours()))[0]

	w.proxmox.SetDelays(pvesim.Delays{Clone: 5 * time.Second})
	w.pods("new", 2, "3", "1Gi", prefers(host))
	w.eventually(time.Minute, func(context.Context) string {
		if len(w.guestsOn(host)) < 2 {
			return "no VM is being cloned on " + host
		}
		return ""
	})
	w.proxmox.SetHostOnline(host, false)
	before := w.guestsOn(host)
	w.running("new", 2, 3*time.Minute)
	if on := w.podsByHost("new"); on["pve-1"]+on["pve-3"] != 2 {
		t.Errorf("pods by host %v, want them on the two other hosts", on)
	}
	if after := w.guestsOn(host); !cmp.Equal(before, after) {
		t.Errorf("guests %v on the host that is down, want the same as before: %v", after, before)
	}
	var claim karpv1.NodeClaim
	var node corev1.Node
	for _, object := range []client.Object{&claim, &node} {
		if err := w.api.Get(context.Background(), client.ObjectKey{Name: old}, object); err != nil || object.GetDeletionTimestamp() != nil {
			t.Errorf("%T %s of the host that is down: %v, deleted %v; want it unchanged", object, old, err, object.GetDeletionTimestamp())
		}
	}
	w.proxmox.SetHostOnline(host, true)
	w.inOrder(3 * time.Minute)
	if _, stands := w.ours()[old]; !stands {
		t.Errorf("VM %s ran before the host went down, but does not exist", old)
	}
}

// guestsOn returns the VMIDs of numaform's range on a host, sorted.
func (w *world) guestsOn(host string) []int {
	var ids []int
	for _, guest := range w.proxmox.Guests() {
		if guest.Host == host && guest.VMID >= 2000 && guest.VMID <= 2999 {
			ids = append(ids, guest.VMID)
		}
	}
	slices.Sort(ids)
	return ids
}

// inOrder waits until the VMs in numaform's range, the nodes and the NodeClaims have the
// same names, and as many node files exist.
func (w *world) inOrder(limit time.Duration) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		var nodes corev1.NodeList
		if err := w.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		if err := w.api.List(ctx, &nodes); err != nil {
			return err.Error()
		}
		files, err := w.leftInBackend(ctx)
		if err != nil {
			return err.Error()
		}
		var want, found, vms []string
		for i := range claims.Items {
			want = append(want, claims.Items[i].Name)
		}
		for i := range nodes.Items {
			found = append(found, nodes.Items[i].Name)
		}
		for _, guest := range w.proxmox.Guests() {
			if guest.VMID >= 2000 && guest.VMID <= 2999 {
				vms = append(vms, guest.Config["name"])
			}
		}
		slices.Sort(vms)
		filed := slices.DeleteFunc(slices.Clone(files), func(name string) bool { return !strings.HasPrefix(name, "file ") })
		if !slices.Equal(want, found) || !slices.Equal(want, vms) || len(filed) != len(want) {
			return fmt.Sprintf("nodeclaims %v, nodes %v, VMs %v, backend %v", want, found, vms, files)
		}
		return ""
	})
}

// impatient makes pods tolerate a node that is not ready for only five seconds.
func impatient(spec *corev1.PodSpec) {
	seconds := int64(5)
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
}

// TestVMDeletedByHand checks that, after the VM of a working node and a VM whose guest
// hangs at boot are deleted in Proxmox, the claims, files and nodes of both are deleted,
// and their pods get new nodes.
func TestVMDeletedByHand(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{delays: pvesim.Delays{Clone: 3 * time.Second}})
	w.start()
	w.steadyClass("plain", soundClass())
	w.steadyPool("workers", "plain", anyType, "")
	w.steadyPool("mute", "plain", anyType, "")
	w.replicated("web", 1, "500m", impatient, func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: "workers"} })
	w.running("web", 1, 2*time.Minute)
	w.initialized(time.Minute)

	w.pods("mute", 1, "500m", "256Mi", inPool("mute"))
	hung := w.claimOf("mute", time.Minute)
	w.guests.SetFault(hung.Name, guestsim.Fault{NeverJoins: true})
	w.eventually(time.Minute, func(context.Context) string {
		if guest, exists := w.ours()[hung.Name]; !exists || !guest.Running {
			return "VM " + hung.Name + " does not run"
		}
		return ""
	})
	w.holds(40*time.Second, func(context.Context) string { // until both claims are old enough: the VM of a younger claim would be re-created
		if len(w.ours()) != 2 {
			return "expected two VMs"
		}
		return ""
	})
	deleted := map[string]int{}
	for name, guest := range w.ours() {
		deleted[name] = guest.VMID
		w.proxmox.RemoveGuest(guest.VMID)
	}
	if len(deleted) != 2 {
		t.Fatalf("VMs %v were deleted, want two", deleted)
	}
	w.nothingLeftOf(hung.Name, deleted[hung.Name], 3*time.Minute)
	w.running("mute", 1, 2*time.Minute)
	for name, vmid := range deleted {
		w.nothingLeftOf(name, vmid, 6*time.Minute)
	}
	w.running("web", 1, 2*time.Minute)
	w.inOrder(time.Minute)
}

// claimOf waits for a NodeClaim of a pool, checks that its annotations name its VM, and
// returns it.
func (w *world) claimOf(pool string, limit time.Duration) *karpv1.NodeClaim {
	w.t.Helper()
	found := &karpv1.NodeClaim{}
	w.eventually(limit, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		if err := w.api.List(ctx, &claims, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}); err != nil {
			return err.Error()
		}
		if len(claims.Items) == 0 {
			return "no NodeClaim of pool " + pool
		}
		*found = claims.Items[0]
		return ""
	})
	if found.Annotations[v1alpha1.AnnotationVM] != found.Name || fleet.Key(found.Annotations[v1alpha1.AnnotationKey]) == "" {
		w.t.Fatalf("NodeClaim %s has annotations %v, want a VM with the claim's name", found.Name, found.Annotations)
	}
	return found
}
