package cli //nolint:testpackage // inCluster has no exported form

import (
	"testing"

	"github.com/numaform/numaform/internal/operator"
)

// TestInCluster checks whether backup and restore read the cluster, for a fleet in git.
func TestInCluster(t *testing.T) {
	t.Parallel()
	settings := &operator.Config{Fleet: operator.Fleet{Git: operator.Git{Remote: "https://git.example/fleet.git"}}}
	for name, tt := range map[string]struct {
		cluster operator.Kubeconfig
		environ []string
		want    bool
	}{
		"no flags":             {},
		"kubeconfig":           {cluster: operator.Kubeconfig{Path: "config"}, want: true},
		"context":              {cluster: operator.Kubeconfig{Context: "lab"}, want: true},
		"a pod":                {environ: []string{"KUBERNETES_SERVICE_HOST=192.0.2.1"}},
		"the controller's pod": {environ: []string{"KUBERNETES_SERVICE_HOST=192.0.2.1", "NUMAFORM_NAMESPACE=numaform"}, want: true},
	} {
		o := clusterOptions{kubeconfig: tt.cluster}
		if got := o.inCluster(tt.environ, settings); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}
