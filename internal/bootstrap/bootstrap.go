// Package bootstrap renders the documents that a new VM reads at its first boot, from
// templates and the VM's values: user-data, meta-data, network-config and vendor-data for
// cloud-init's NoCloud source. It also renders the command with which a VM joins through its
// guest agent. It does no I/O and uses no clock. Its results contain secrets. Start at
// Render and RenderCommand.
package bootstrap

import (
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The names of the documents, in template Secrets and in the seed.
const (
	UserData      = "user-data"
	MetaData      = "meta-data"
	NetworkConfig = "network-config"
	VendorData    = "vendor-data"
	// JoinCommand is a script that the guest agent runs. The seed does not contain it.
	JoinCommand = "join-command"
)

// Templates are the templates of documents and join command, by name. They can call Functions
// and use Values.
type Templates map[string]string

// Documents are rendered templates, by their file names in the seed. They contain a join
// token, so they must never be printed.
type Documents map[string][]byte

// String returns the total size of the documents instead of their content.
func (d Documents) String() string {
	size := 0
	for _, content := range d {
		size += len(content)
	}
	return fmt.Sprintf("documents of %d bytes", size)
}

// GoString returns the same as String.
func (d Documents) GoString() string { return d.String() }

//go:embed defaults/user-data.tmpl
var defaultUserData string

//go:embed defaults/meta-data.tmpl
var defaultMetaData string

//go:embed defaults/network-config.tmpl
var defaultNetworkConfig string

// Defaults returns templates for Debian and Ubuntu images with containerd and kubelet. They
// configure kubelet as `kubeadm join` does. They contain no vendor-data.
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
			"server":                     cluster.APIServer,
			"certificate-authority-data": base64.StdEncoding.EncodeToString([]byte(cluster.RootCA)),
		}}},
		"users":           []any{map[string]any{"name": user, "user": map[string]any{"token": cluster.Token}}},
		"contexts":        []any{map[string]any{"name": name, "context": map[string]any{"cluster": name, "user": user}}},
		"current-context": name,
	})
	return string(encoded), err
}

// kubeletFlags returns the environment file with the flags for kubelet's systemd unit. It
// accepts only flags that cannot end the quotes.
func kubeletFlags(args []string) (string, error) {
	for _, arg := range args {
		if !kubeletArg.MatchString(arg) {
			return "", errors.New("requires kubelet flags")
		}
	}
	return fmt.Sprintf("KUBELET_KUBEADM_ARGS=%q\n", strings.Join(args, " ")), nil
}
