package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	managerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
)

// leaseName is the Lease that elects the leader among several controllers.
const leaseName = "numaform-controller"

// register registers the kinds and labels shared by Karpenter's core and our clients.
// Call it before either runs, because they read them without a lock.
func register() error {
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		return fmt.Errorf("registering kinds: %w", err)
	}
	// Pods may select by our labels.
	karpv1.WellKnownLabels.Insert(scheduling.WellKnownLabels()...)
	return nil
}

// newManager returns a manager with the kinds, the cache and the indexes that Karpenter's
// controllers and ours need. Metrics and probes are served elsewhere, because they must
// respond while the manager is not running.
func newManager(ctx context.Context, settings *ControllerSettings, karpenter *options.Options) (manager.Manager, error) {
	logger := log.FromContext(ctx)
	everything, skip := settings.Grace, true
	m, err := controllerruntime.NewManager(settings.Rest, controllerruntime.Options{
		Logger:                  logger,
		Scheme:                  scheme.Scheme,
		LeaderElection:          settings.LeaderElect,
		LeaderElectionID:        leaseName,
		LeaderElectionNamespace: settings.Namespace,
		// If the lease were released before everything has ended, two processes could
		// write.
		LeaderElectionReleaseOnCancel: false,
		// No LeaderElectionConfig: with one, the manager writes to the scheme that the other
		// clients of this process read at the same time.
		Metrics:                 server.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		GracefulShutdownTimeout: &everything,
		BaseContext: func() context.Context {
			return options.ToContext(log.IntoContext(context.Background(), logger), karpenter)
		},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}: {Field: fields.SelectorFromSet(fields.Set{"metadata.namespace": "kube-node-lease"})},
		}},
		Client: client.Options{Cache: &client.CacheOptions{
			// numaform has no permission to list them, because they include other
			// components' credentials.
			DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}, &v1alpha1.ScalePlan{}},
		}},
		// One process may run several managers in succession.
		Controller: managerconfig.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	return m, addIndexes(ctx, m)
}

// addIndexes adds the indexes that Karpenter v1.14.1 uses.
func addIndexes(ctx context.Context, m manager.Manager) error {
	type index struct {
		object client.Object
		field  string
		value  func(client.Object) string
	}
	indexes := []index{
		{&corev1.Pod{}, "spec.nodeName", func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName }},
		{&corev1.Node{}, "spec.providerID", func(o client.Object) string { return o.(*corev1.Node).Spec.ProviderID }},
		{&storagev1.VolumeAttachment{}, "spec.nodeName", func(o client.Object) string { return o.(*storagev1.VolumeAttachment).Spec.NodeName }},
		{&karpv1.NodeClaim{}, "status.providerID", func(o client.Object) string { return o.(*karpv1.NodeClaim).Status.ProviderID }},
	}
	for name, part := range map[string]func(*karpv1.NodeClassReference) string{
		"group": func(r *karpv1.NodeClassReference) string { return r.Group },
		"kind":  func(r *karpv1.NodeClassReference) string { return r.Kind },
		"name":  func(r *karpv1.NodeClassReference) string { return r.Name },
	} {
		indexes = append(
			indexes,
			index{&karpv1.NodeClaim{}, "spec.nodeClassRef." + name, func(o client.Object) string { return part(o.(*karpv1.NodeClaim).Spec.NodeClassRef) }},
			index{&karpv1.NodePool{}, "spec.template.spec.nodeClassRef." + name, func(o client.Object) string {
				return part(o.(*karpv1.NodePool).Spec.Template.Spec.NodeClassRef)
			}},
		)
	}
	for _, i := range indexes {
		err := m.GetFieldIndexer().IndexField(ctx, i.object, i.field, func(o client.Object) []string { return []string{i.value(o)} })
		if err != nil {
			return fmt.Errorf("indexing %T by %s: %w: apply the CRDs of Karpenter and numaform", i.object, i.field, err)
		}
	}
	return nil
}

// karpenterOptions returns the options that Karpenter's parts read from the context.
func karpenterOptions(settings *ControllerSettings) (*options.Options, error) {
	gates, err := featureGates(settings.FeatureGates)
	if err != nil {
		return nil, err
	}
	o := &options.Options{
		BatchMaxDuration: settings.BatchMax, BatchIdleDuration: settings.BatchIdle,
		PreferencePolicy: options.PreferencePolicyRespect, MinValuesPolicy: options.MinValuesPolicyStrict,
		CPURequests: 1000, IgnoreDRARequests: true, FeatureGates: gates,
	}
	if settings.IgnorePreferences {
		o.PreferencePolicy = options.PreferencePolicyIgnore
	}
	if settings.RelaxMinValues {
		o.MinValuesPolicy = options.MinValuesPolicyBestEffort
	}
	return o, nil
}

// ControllerSettings configure the controller in a cluster.
type ControllerSettings struct {
	// Rest is the connection to the cluster.
	Rest *rest.Config
	// Namespace is numaform's own.
	Namespace string
	// BootstrapAccount is the ServiceAccount in Namespace that new nodes join as.
	BootstrapAccount string
	// BootstrapTokens allows classes to use bootstrap tokens, which are in kube-system.
	BootstrapTokens bool
	// Observe makes the controller decide and plan, and write nothing.
	Observe     bool
	LeaderElect bool
	// MetricsAddress, ProbeAddress and ProfileAddress are the listen addresses; "0"
	// disables the listener.
	MetricsAddress, ProbeAddress, ProfileAddress string
	BatchIdle, BatchMax                          time.Duration
	IgnorePreferences                            bool
	RelaxMinValues                               bool
	// FeatureGates are the Karpenter feature gates that CheckFeatureGates accepts, such
	// as NodeRepair=true.
	FeatureGates string
	// Kproximate also serves kproximate's metrics, under their own names.
	Kproximate bool
	// DriftEvery is the interval between comparisons of all VMs with Proxmox; 0 means
	// never.
	DriftEvery time.Duration
	// Grace is the maximum time for a shutdown.
	Grace time.Duration
	// Version is numaform's version.
	Version string
	Environ []string
	Logger  logr.Logger
}
