package bootstrap

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed defaults/user-data.tmpl
var defaultUserData string

//go:embed defaults/meta-data.tmpl
var defaultMetaData string

//go:embed defaults/network-config.tmpl
var defaultNetworkConfig string

// Defaults returns templates for Debian and Ubuntu with containerd and kubelet installed:
// the VM joins as with `kubeadm join`, with its own token. There is no vendor-data.
func Defaults() Templates {
	return Templates{UserData: defaultUserData, MetaData: defaultMetaData, NetworkConfig: defaultNetworkConfig}
}

// bootstrapKubeconfig returns the kubeconfig with which kubelet requests a certificate.
func bootstrapKubeconfig(cluster Kubernetes) (string, error) {
	const name, user = "kubernetes", "tls-bootstrap-token-user"
	encoded, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []any{map[string]any{"name": name, "cluster": map[string]any{
			"server": cluster.APIServer, "certificate-authority-data": encodeBase64(cluster.RootCA),
		}}},
		"users":           []any{map[string]any{"name": user, "user": map[string]any{"token": cluster.Token}}},
		"contexts":        []any{map[string]any{"name": name, "context": map[string]any{"cluster": name, "user": user}}},
		"current-context": name,
	})
	return string(encoded), err
}

// kubeletFlags returns the file of flags that kubelet's systemd unit reads. The flags
// come from Configure, so they cannot end the quotes.
func kubeletFlags(args []string) (string, error) {
	for _, arg := range args {
		if !kubeletArg.MatchString(arg) {
			return "", errors.New("is not for flags of kubelet")
		}
	}
	return fmt.Sprintf("KUBELET_KUBEADM_ARGS=%q\n", strings.Join(args, " ")), nil
}
