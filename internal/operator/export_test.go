package operator

import (
	"context"
	"net/http"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"

	"github.com/numaform/numaform/state"
)

// Decode reads the text of a numaform.yaml alone: no environment, paths or defaults.
func Decode(text []byte) (Config, error) {
	var config Config
	err := decode(text, &config)
	return config, err
}

// Serve serves probes, metrics, profiles and an empty web page until ctx ends.
func Serve(ctx context.Context, settings *ControllerSettings, registry prometheus.Gatherer, ready func(context.Context) error) error {
	return serve(ctx, settings, registry, ready, http.NotFoundHandler())
}

// Paced returns a Karpenter loop that slows down as the cluster grows.
func Paced(l loop, name string, nodes func() int) interface {
	Reconcile(ctx context.Context) (reconciler.Result, error)
} {
	return &paced{loop: l, name: name, nodes: nodes}
}

// BackendLogin returns the engine's login to the API server that stores the states.
func (c *Config) BackendLogin(environ []string, cluster Kubeconfig) (state.Kubeconfig, error) {
	return c.backendLogin(environ, cluster)
}

// FileFix returns the fix for an error of the file with a key's value.
func FileFix(err error, key string) string { return fileFix(err, key) }

// NewDisruptions returns Karpenter's disruption loop without the methods that cannot have
// candidates.
func NewDisruptions(
	reader client.Reader, manual func(*karpv1.NodePool) bool, free, held []disruption.Method,
	build func(methods ...disruption.Method) *disruption.Controller,
) interface {
	Reconcile(ctx context.Context) (reconciler.Result, error)
} {
	return newDisruptions(reader, manual, free, held, build)
}
