package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
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

// newManager returns a manager with the kinds, the cache and the indexes that Karpenter's
// controllers and ours need. Metrics and probes are served elsewhere, because they must
// respond while the manager is not running.
func newManager(ctx context.Context, settings *ControllerSettings, intervals Intervals, election resourcelock.Interface, karpenter *options.Options) (manager.Manager, error) {
	lease, deadline := intervals.leadership()
	everything, skip := settings.Grace, true
	m, err := controllerruntime.NewManager(settings.Rest, controllerruntime.Options{
		Logger:                              log.FromContext(ctx),
		Scheme:                              scheme.Scheme,
		LeaderElection:                      settings.LeaderElect,
		LeaderElectionResourceLockInterface: election,
		LeaseDuration:                       &lease,
		RenewDeadline:                       &deadline,
		RetryPeriod:                         &intervals.Lease,
		// The manager would release the Lease before all engines have ended, so that two
		// processes could write. See release.
		LeaderElectionReleaseOnCancel: false,
		// No LeaderElectionConfig: with one, the manager writes to the scheme that the other
		// clients of this process read at the same time.
		Metrics:                 server.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		GracefulShutdownTimeout: &everything,
		// The manager cancels this context itself. It needs the values of ctx: the logger, and
		// the tracer.
		BaseContext: func() context.Context { return options.ToContext(context.WithoutCancel(ctx), karpenter) },
		Cache: cache.Options{
			DefaultTransform: slim,
			ByObject: map[client.Object]cache.ByObject{
				&coordinationv1.Lease{}: {Field: fields.SelectorFromSet(fields.Set{"metadata.namespace": "kube-node-lease"})},
			},
		},
		Client: client.Options{Cache: &client.CacheOptions{
			// numaform has no permission to list all Secrets and ConfigMaps, because they
			// include other components' credentials. ScalePlans must never be outdated, because
			// a used approval would look unused.
			DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}, &v1alpha1.ScalePlan{}},
		}},
		// One process may run several managers in succession.
		Controller: managerconfig.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
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
		{&karpv1.NodeClaim{}, scheduling.FieldKeyOfUID, scheduling.IndexKeyOfUID},
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
		BatchMaxDuration:  settings.BatchMax,
		BatchIdleDuration: settings.BatchIdle,
		PreferencePolicy:  options.PreferencePolicyRespect,
		MinValuesPolicy:   options.MinValuesPolicyStrict,
		CPURequests:       1000,
		IgnoreDRARequests: true,
		FeatureGates:      gates,

		DisableClusterStateObservability: settings.NoClusterState,
	}
	if settings.IgnorePreferences {
		o.PreferencePolicy = options.PreferencePolicyIgnore
	}
	if settings.RelaxMinValues {
		o.MinValuesPolicy = options.MinValuesPolicyBestEffort
	}
	return o, nil
}

// CheckFeatureGates returns an error if the value of --feature-gates is invalid.
func CheckFeatureGates(text string) error {
	_, err := featureGates(text)
	return err
}

// featureGates parses KEY=BOOL,… for the gates that have an effect here. Karpenter itself
// ignores unknown gates, and accepts gates whose controllers do not run here.
func featureGates(text string) (options.FeatureGates, error) {
	gates := options.DefaultFeatureGates()
	// A reserved offering requires an ID and a count from a cloud; here it is a label.
	gates.ReservedCapacity = false
	ours := map[string]*bool{
		"CapacityBuffer":          &gates.CapacityBuffer,
		"NodeOverlay":             &gates.NodeOverlay,
		"NodeRepair":              &gates.NodeRepair,
		"SpotToSpotConsolidation": &gates.SpotToSpotConsolidation,
		"StaticCapacity":          &gates.StaticCapacity,
	}
	var mistakes []error
	for pair := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		enabled, err := strconv.ParseBool(value)
		switch {
		case name == "" && value == "":
		case ours[name] == nil:
			mistakes = append(mistakes, fmt.Errorf("--feature-gates: unsupported feature gate %q: must be one of %s",
				name, strings.Join(slices.Sorted(maps.Keys(ours)), ", ")))
		case err != nil:
			mistakes = append(mistakes, fmt.Errorf("--feature-gates: %s is %q: must be %s=true or %s=false", name, value, name, name))
		default:
			*ours[name] = enabled
		}
	}
	return gates, errors.Join(mistakes...)
}
