package scheduling

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// ErrNoKubeconfig is returned by ClientConfig if no kubeconfig selects a cluster.
var ErrNoKubeconfig = errors.New("reading kubeconfig: neither KUBECONFIG nor ~/.kube/config names a cluster")

// ClientConfig returns the client configuration for a context of a kubeconfig. If the path
// is empty, it uses the files that KUBECONFIG names, or else ~/.kube/config, or else, in a
// pod, the pod's own cluster. If the context is empty, it uses the current context.
func ClientConfig(path, kubeContext string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	if path != "" {
		if err := checkKind(path); err != nil {
			return nil, fmt.Errorf("reading kubeconfig: %w", err)
		}
	}
	loaded, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w: correct the file, or select another one with --kubeconfig", err)
	}
	if path != "" || len(loaded.Contexts) > 0 {
		if err := checkContext(loaded, kubeContext); err != nil {
			return nil, fmt.Errorf("reading kubeconfig: %w", err)
		}
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, ErrNoKubeconfig
	}
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w: correct it, or select another context with --context", err)
	}
	return config, nil
}

// checkKind returns an error for a file that does not exist or is not a kubeconfig.
func checkKind(path string) error {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: give this user read access, or select another file with --kubeconfig", err)
	case err != nil:
		return fmt.Errorf("%w: correct --kubeconfig", err)
	}
	var file struct {
		metav1.TypeMeta `json:",inline"`
		ClusterID       any `json:"clusterID"`
		Contexts        any `json:"contexts"`
	}
	switch err := yaml.Unmarshal(text, &file); {
	case err != nil:
		return fmt.Errorf("%s: %s: set --kubeconfig to a kubeconfig", path, describeDecodeError(err))
	case file.Kind != "" && file.Kind != "Config":
		return fmt.Errorf("%s is a manifest (%s), not a kubeconfig: pass it with -f", path, file.Kind)
	case file.Kind == "" && file.ClusterID != nil:
		return fmt.Errorf("%s is a configuration of numaform, not a kubeconfig: pass it with --config", path)
	case file.Contexts == nil:
		return fmt.Errorf("%s contains no contexts: set --kubeconfig to a kubeconfig", path)
	}
	return nil
}

// maxListed limits the number of names in a message.
const maxListed = 10

// checkContext returns an error for a context that does not exist, or that refers to an
// entry that does not exist. An empty name means the current context.
func checkContext(config *clientcmdapi.Config, name string) error {
	contexts := slices.Sorted(maps.Keys(config.Contexts))
	if len(contexts) > maxListed {
		contexts = append(contexts[:maxListed], "…")
	}
	list := strings.Join(contexts, ", ")
	switch {
	case name == "" && config.CurrentContext == "":
		return fmt.Errorf("no current-context is set: select one with --context: %s", list)
	case name == "":
		name = config.CurrentContext
	}
	context := config.Contexts[name]
	if context == nil {
		return fmt.Errorf("context %q does not exist: set --context to one of %s", name, list)
	}
	if config.Clusters[context.Cluster] == nil {
		return fmt.Errorf("context %q refers to the cluster %q, which is not in the file: correct the context, or select another one with --context: %s",
			name, context.Cluster, list)
	}
	if context.AuthInfo != "" && config.AuthInfos[context.AuthInfo] == nil {
		return fmt.Errorf("context %q refers to the user %q, which is not in the file: correct the context, or select another one with --context: %s",
			name, context.AuthInfo, list)
	}
	return nil
}

// ConnectionHint returns the fix for an error without a response from the API server, or "".
func ConnectionHint(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var network net.Error
	switch {
	case errors.As(err, &unknown):
		return "set certificate-authority-data of the cluster in the kubeconfig to the CA of this API server, or select another --context"
	case errors.As(err, &name):
		return "set the kubeconfig's server to a name for which the certificate is valid"
	case errors.As(err, &network):
		return "check that the kubeconfig's server is correct and reachable from here, or select another --context"
	}
	return ""
}
