package seed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/bootstrap"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// ReasonClusterUnknown is the reason of a class's condition if it is unknown how nodes
// reach the cluster.
const ReasonClusterUnknown = "ClusterUnknown"

// MetadataError reports why no join metadata can be generated for nodes of a class.
type MetadataError struct {
	Class string
	// Reason is the reason for the class's MetadataReady condition.
	Reason string
	Err    error
}

// Error names the class and the cause.
func (e *MetadataError) Error() string {
	return fmt.Sprintf("creating the seed of ProxmoxNodeClass %s: %v", e.Class, e.Err)
}

// Unwrap returns the cause.
func (e *MetadataError) Unwrap() error { return e.Err }

// ConditionReason returns the reason of the class's condition.
func (e *MetadataError) ConditionReason() string { return e.Reason }

// Check returns a *MetadataError if no join metadata can be generated for nodes of a class.
// It renders the class's templates for example VMs.
func (s *Seeder) Check(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	if !class.Seeded() && !class.ByAgent() {
		return nil
	}
	known, err := s.recentFacts(ctx)
	if err != nil {
		return metadataError(class, ReasonClusterUnknown, err)
	}
	materials, err := s.gatherFor(ctx, class, known)
	if err != nil {
		return err
	}
	// Try the first and the last VMID of each region, or of the class, because templates may compute an
	// address from the VMID.
	ids := map[fleet.VMID]bool{}
	for name, region := range s.config.Regions {
		if class.Spec.Region == "" || class.Spec.Region == string(name) {
			ids[region.VMIDs.Lower], ids[region.VMIDs.Upper] = true, true
		}
	}
	if own := class.Spec.VMIDRange; own != nil {
		ids = map[fleet.VMID]bool{fleet.VMID(own.Lower): true, fleet.VMID(own.Upper): true}
	}
	if len(ids) == 0 { // the class's region is not configured, so it has no hosts
		ids[fleet.MinVMID] = true
	}
	token := jointoken.Example(class.TokenForm())
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		vm := s.example(ctx, class, id)
		if class.ByAgent() {
			_, err = s.command(materials, &vm, &karpv1.NodeClaim{}, token)
		} else {
			_, err = s.render(materials, &vm, &karpv1.NodeClaim{}, token)
		}
		if problem := new(*MetadataError); errors.As(err, problem) {
			(*problem).Err = fmt.Errorf("for VMID %d: %w", id, (*problem).Err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// example returns an example VM of a class.
func (s *Seeder) example(ctx context.Context, class *v1alpha1.ProxmoxNodeClass, id fleet.VMID) fleet.VM {
	vm := fleet.VM{
		Spec: fleet.Spec{NodeClass: class.Name, VCPUs: 2, MemoryMiB: 4096, Tags: class.Spec.Tags},
		Key:  "0123456789abcdef0123456789abcdef",
		VMID: id,
		Name: fleet.NodeName("example", id),
	}
	vm.Host = topology.HostID{Region: "region", Host: "host"}
	vm.Networks = s.exampleNetworks(ctx, class)
	if len(s.config.Types) > 0 {
		first := &s.config.Types[0]
		vm.InstanceType, vm.VCPUs, vm.MemoryMiB = first.Name, first.VCPUs, first.MemoryMiB
	}
	return vm
}

// exampleNetworks returns the network devices of an example VM. Its addresses are the first
// ones of their pools in any region; a pool that does not exist is reported with the class.
func (s *Seeder) exampleNetworks(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) []fleet.Network {
	if !class.Addressed() {
		return nil
	}
	networks := scheduling.Networks(class)
	snapshot, err := s.config.Snapshot(ctx)
	if err != nil {
		snapshot = &topology.Snapshot{}
	}
	for i := range networks {
		networks[i].MAC += fmt.Sprintf(":00:00:%02X", i)
		for j := range networks[i].Addresses {
			address := &networks[i].Addresses[j]
			address.CIDR = "192.0.2.10/24"
			for r := range snapshot.Regions {
				if pool := snapshot.AddressPool(snapshot.Regions[r].Name, address.Pool); pool != nil {
					*address = ipam.Address(pool, pool.Ranges[0].First)
					break
				}
			}
		}
	}
	return networks
}

// materials are the inputs common to all seeds of a class.
type materials struct {
	class     *v1alpha1.ProxmoxNodeClass
	cluster   facts
	templates bootstrap.Templates
	values    map[string]any
}

// sshAuthorizedKeys is the key of the SSH keys in a Secret of values and in .Values.
const sshAuthorizedKeys = "SSHAuthorizedKeys"

// gather reads the inputs for the seeds of a class. It returns a *MetadataError if a
// person must fix something.
func (s *Seeder) gather(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (*materials, error) {
	known, err := s.facts(ctx)
	if err != nil {
		return nil, metadataError(class, ReasonClusterUnknown, err)
	}
	return s.gatherFor(ctx, class, known)
}

// gatherFor is gather with known facts about the cluster.
func (s *Seeder) gatherFor(ctx context.Context, class *v1alpha1.ProxmoxNodeClass, known facts) (*materials, error) {
	found := &materials{class: class, cluster: known, values: map[string]any{}}
	templates, err := s.secret(ctx, "spec.metadata.templatesRef", class.Spec.Metadata.TemplatesRef)
	if err != nil {
		return nil, metadataError(class, secretReason(err), err)
	}
	if found.templates, err = bootstrap.TemplatesOf(templates); err != nil {
		return nil, metadataError(class, v1alpha1.ReasonTemplatesInvalid, err)
	}
	if err := s.checkTokenForm(ctx, class, found.templates); err != nil {
		return nil, err
	}
	values, err := s.secret(ctx, "spec.metadata.valuesRef", class.Spec.Metadata.ValuesRef)
	if err != nil {
		return nil, metadataError(class, secretReason(err), err)
	}
	for key, value := range values {
		found.values[key] = string(value)
	}
	if keys := class.Spec.Metadata.SSHAuthorizedKeys; len(keys) > 0 {
		if more, ok := values[sshAuthorizedKeys]; ok {
			keys = append(slices.Clone(keys), string(more))
		}
		found.values[sshAuthorizedKeys] = strings.Join(keys, "\n")
	}
	return found, nil
}

// checkTokenForm returns why a class's token form cannot be used for its nodes, or nil.
func (s *Seeder) checkTokenForm(ctx context.Context, class *v1alpha1.ProxmoxNodeClass, templates bootstrap.Templates) error {
	if class.TokenForm() == v1alpha1.TokenBootstrap {
		if s.config.Cluster.BootstrapTokens {
			return nil
		}
		return metadataError(class, v1alpha1.ReasonBootstrapTokensOff, errors.New(
			"spec.metadata.token is Bootstrap, but numaform may not create bootstrap tokens: set rbac.bootstrapTokens in the chart's values (--bootstrap-tokens), "+
				"or use .Kubernetes.Token in the templates and remove spec.metadata.token",
		))
	}
	if uses := bootstrap.UsesBootstrapToken(templates); len(uses) > 0 {
		return metadataError(class, v1alpha1.ReasonBootstrapTokenNeeded, fmt.Errorf(
			"%s uses .Kubernetes.BootstrapToken, which nodes of this class do not get: use .Kubernetes.Token for kubelet, "+
				"or, for kubeadm join, k3s and Talos, set spec.metadata.token: Bootstrap", strings.Join(uses, ", "),
		))
	}
	account := s.account()
	if err := s.config.Cluster.Live.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
		return metadataError(class, v1alpha1.ReasonServiceAccountNotFound, accountError(account, err))
	}
	return nil
}

// metadataError returns a *MetadataError for a problem that a person must fix. An API
// server that does not respond is not such a problem.
func metadataError(class *v1alpha1.ProxmoxNodeClass, reason string, err error) error {
	answered := !errors.As(err, new(apierrors.APIStatus)) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
	if answered && !errors.As(err, new(net.Error)) {
		return &MetadataError{Class: class.Name, Reason: reason, Err: err}
	}
	return fmt.Errorf("creating the seed of ProxmoxNodeClass %s: %w", class.Name, err)
}

// secret reads a Secret named in a class, or returns nil if none is named.
func (s *Seeder) secret(ctx context.Context, field string, ref *v1alpha1.SecretReference) (map[string][]byte, error) {
	if ref == nil {
		return nil, nil
	}
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	if key.Namespace == "" {
		key.Namespace = s.config.Cluster.Namespace
	}
	if key.Namespace == jointoken.BootstrapNamespace && key.Namespace != s.config.Cluster.Namespace {
		// Authors of classes must not be able to read every Secret that numaform can
		// read.
		return nil, fmt.Errorf("%s: a class cannot use secret %s: move it to namespace %s", field, key, s.config.Cluster.Namespace)
	}
	secret := &corev1.Secret{}
	err := s.config.Cluster.Live.Get(ctx, key, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s: secret %s does not exist (%w): create it, or remove the reference", field, key, err)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%s: numaform may not read secret %s (%w): grant numaform get on it, or use a secret in namespace %s",
			field, key, err, s.config.Cluster.Namespace)
	case err != nil:
		return nil, fmt.Errorf("%s: reading secret %s: %w", field, key, err)
	}
	return secret.Data, nil
}

func secretReason(err error) string {
	if apierrors.IsNotFound(err) {
		return v1alpha1.ReasonSecretNotFound
	}
	return v1alpha1.ReasonSecretForbidden
}

// render renders the documents of a VM. Every error is a *MetadataError, and contains no
// content of the documents.
func (s *Seeder) render(m *materials, vm *fleet.VM, claim *karpv1.NodeClaim, token jointoken.Token) (bootstrap.Documents, error) {
	values, err := s.values(m, vm, claim, token)
	if err != nil {
		return nil, m.renderError(err)
	}
	documents, err := bootstrap.Render(m.templates, values)
	return documents, m.renderError(err)
}

// command renders the command by which a VM joins through its guest agent; see render.
func (s *Seeder) command(m *materials, vm *fleet.VM, claim *karpv1.NodeClaim, token jointoken.Token) (string, error) {
	values, err := s.values(m, vm, claim, token)
	if err != nil {
		return "", m.renderError(err)
	}
	script, err := bootstrap.RenderCommand(m.templates, values)
	return script, m.renderError(err)
}

// renderError adds the class and the Secret to a rendering error.
func (m *materials) renderError(err error) error {
	if err == nil {
		return nil
	}
	if ref := m.class.Spec.Metadata.TemplatesRef; ref != nil && errors.As(err, new(*bootstrap.DocumentError)) {
		err = fmt.Errorf("secret %s of spec.metadata.templatesRef: %w", ref.Name, err)
	}
	return &MetadataError{Class: m.class.Name, Reason: v1alpha1.ReasonTemplatesInvalid, Err: err}
}

// values returns the values that a class's templates may use for a VM.
func (s *Seeder) values(m *materials, vm *fleet.VM, claim *karpv1.NodeClaim, token jointoken.Token) (bootstrap.Values, error) {
	values := bootstrap.ValuesOf(vm)
	values.Values = m.values
	values.Resources.HugePages2Mi, values.Resources.HugePages1Gi = scheduling.GuestPages(m.class, vm, s.config.Types)
	values.Kubernetes.Version, values.Kubernetes.RootCA = m.cluster.version, m.cluster.ca
	values.Kubernetes.APIServer, values.Kubernetes.Token = m.cluster.apiServer, token.Reveal()
	if m.class.TokenForm() == v1alpha1.TokenBootstrap {
		values.Kubernetes.BootstrapToken = token.Reveal()
	}
	kubelet, err := s.kubelet(m, vm, claim)
	if err != nil {
		return values, err
	}
	return values, values.Configure(kubelet)
}

// kubelet returns the kubelet configuration for a VM: the class's, with the same
// reservations that the scheduler uses.
func (s *Seeder) kubelet(m *materials, vm *fleet.VM, claim *karpv1.NodeClaim) (bootstrap.Kubelet, error) {
	fields := v1alpha1.KubeletConfiguration{}
	if m.class.Spec.Kubelet != nil {
		fields = *m.class.Spec.Kubelet
	}
	if len(fields.ClusterDNS) == 0 {
		fields.ClusterDNS = m.cluster.dns
	}
	// The class's fields have the same names and types as kubelet's configuration.
	config, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&fields)
	if err != nil {
		return bootstrap.Kubelet{}, err
	}
	if domain := s.config.Cluster.Join.ClusterDomain; domain != "" {
		config["clusterDomain"] = domain
	}
	reserved := scheduling.ReservedFor(m.class, vm, s.config.Types)
	config["kubeReserved"], config["systemReserved"], config["evictionHard"] = reserved.KubeReserved, reserved.SystemReserved, reserved.EvictionHard
	delete(config, "maxPods")
	if reserved.MaxPods > 0 {
		config["maxPods"] = min(reserved.MaxPods, math.MaxInt32)
	}

	kubelet := bootstrap.Kubelet{
		ExternalCloudProvider: s.config.Cluster.Join.CloudController,
		Labels:                claim.Labels,
		Config:                config,
	}
	for _, taint := range slices.Concat(claim.Spec.Taints, claim.Spec.StartupTaints) {
		kubelet.Taints = append(kubelet.Taints, bootstrap.Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	return kubelet, nil
}
