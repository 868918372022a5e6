package bootstrap

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
)

const (
	// caFile is the path of the cluster's CA certificates on a node, as with kubeadm.
	caFile     = "/etc/kubernetes/pki/ca.crt"
	kubeletAPI = "kubelet.config.k8s.io/v1beta1"
	// defaultDomain is the default domain of Services.
	defaultDomain = "cluster.local"
)

// unregistered is the taint of a Node that Karpenter has not registered yet. Karpenter removes
// the taint.
var unregistered = Taint{Key: "karpenter.sh/unregistered", Effect: "NoExecute"}

// Kubelet is the kubelet configuration of a node. Empty fields mean kubelet's defaults.
type Kubelet struct {
	// ExternalCloudProvider leaves providerID, zone and region to a cloud controller
	// manager.
	ExternalCloudProvider bool
	// Labels are the labels of the Node. Configure omits labels that kubelet may not set;
	// Karpenter sets them when it registers the Node.
	Labels map[string]string
	// Taints are the initial taints of the Node. Configure adds karpenter.sh/unregistered.
	Taints []Taint
	// Config contains fields of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) that
	// override the defaults.
	Config map[string]any
}

// Configure sets the values for kubelet. It uses the hostname and the provider ID in Metadata.
func (v *Values) Configure(kubelet Kubelet) error {
	taints := []Taint{unregistered}
	for _, taint := range kubelet.Taints {
		if taint != unregistered {
			taints = append(taints, taint)
		}
	}
	var registered []any
	for _, taint := range taints {
		effect := taint.Effect == "NoSchedule" || taint.Effect == "PreferNoSchedule" || taint.Effect == "NoExecute"
		if !effect || !qualifiedName.MatchString(taint.Key) || !labelValue.MatchString(taint.Value) {
			return fmt.Errorf("configuring kubelet of %s: invalid taint %q: correct taints or startupTaints of the NodePool", v.Metadata.Hostname, taint)
		}
		object := map[string]any{"key": taint.Key, "effect": taint.Effect}
		if taint.Value != "" {
			object["value"] = taint.Value
		}
		registered = append(registered, object)
	}

	// kubelet does not start with labels that it may not set.
	labels := maps.Clone(kubelet.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return !selfLabel(key) })

	args := []string{"--hostname-override=" + v.Metadata.Hostname}
	if len(labels) > 0 {
		var pairs []string
		for _, key := range sortedKeys(labels) {
			pairs = append(pairs, key+"="+labels[key])
		}
		args = append(args, "--node-labels="+strings.Join(pairs, ","))
	}
	if kubelet.ExternalCloudProvider {
		args = append(args, "--cloud-provider=external")
	}
	for _, arg := range args {
		if !kubeletArg.MatchString(arg) {
			return fmt.Errorf("configuring kubelet of %s: invalid name or label %q: correct the labels of the NodePool", v.Metadata.Hostname, arg)
		}
	}

	// The defaults match kubeadm's.
	config := map[string]any{
		"apiVersion": kubeletAPI,
		"kind":       "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": caFile},
		},
		"authorization":      map[string]any{"mode": "Webhook"},
		"cgroupDriver":       "systemd",
		"clusterDomain":      defaultDomain,
		"rotateCertificates": true,
		"registerWithTaints": registered,
	}
	if !kubelet.ExternalCloudProvider {
		config["providerID"] = v.Metadata.ProviderID
	}
	for key, value := range kubelet.Config {
		if texts, ok := value.(map[string]string); ok {
			if len(texts) == 0 {
				continue
			}
			value = anyMap(texts)
		}
		config[key] = value
	}

	v.Kubernetes.KubeletConfiguration = config
	v.Kubernetes.KubeletArgs = args
	v.Kubernetes.Labels = anyMap(labels)
	v.Kubernetes.Taints = taints
	return nil
}

var (
	qualifiedName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	labelValue    = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`)
	// kubeletArg matches flags with names and labels as values. The flags are quoted in an
	// environment file of systemd.
	kubeletArg = regexp.MustCompile(`^--[a-z]+(-[a-z]+)*=[A-Za-z0-9./_=,-]+$`)
)

// selfLabel reports whether kubelet may set a label on its own Node. It follows the check of
// --node-labels in kubelet: pkg/kubelet/apis of Kubernetes.
func selfLabel(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	within := func(suffix string) bool { return domain == suffix || strings.HasSuffix(domain, "."+suffix) }
	reserved := ok && (within("kubernetes.io") || within("k8s.io"))
	if !reserved || within("kubelet.kubernetes.io") || within("node.kubernetes.io") {
		return true
	}
	switch key {
	case "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os",
		"topology.kubernetes.io/region", "topology.kubernetes.io/zone",
		"failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
		"beta.kubernetes.io/instance-type", "beta.kubernetes.io/os", "beta.kubernetes.io/arch":
		return true
	}
	return false
}
