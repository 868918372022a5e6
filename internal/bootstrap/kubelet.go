package bootstrap

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
)

// The paths in the default templates, which are kubeadm's.
const (
	caFile     = "/etc/kubernetes/pki/ca.crt"
	kubeletAPI = "kubelet.config.k8s.io/v1beta1"
	// defaultDomain is the domain of Services in nearly every cluster.
	defaultDomain = "cluster.local"
)

// unregistered is the taint by which Karpenter recognizes a Node that has not been
// registered yet; Karpenter removes it.
var unregistered = Taint{Key: "karpenter.sh/unregistered", Effect: "NoExecute"}

// Kubelet is a node's kubelet configuration. Empty fields mean kubelet's defaults.
type Kubelet struct {
	// ExternalCloudProvider leaves providerID, zone and region to a cloud controller
	// manager.
	ExternalCloudProvider bool
	// Labels are labels of the Node. Labels that kubelet may not set are omitted;
	// Karpenter sets them when it registers the Node.
	Labels map[string]string
	// Taints are the taints that the Node has from the start. Karpenter's
	// karpenter.sh/unregistered is added.
	Taints []Taint
	// Config contains fields of a KubeletConfiguration of kubelet.config.k8s.io/v1beta1. They
	// replace the defaults.
	Config map[string]any
}

// Configure sets the values that configure kubelet. The node's name and providerID come
// from the values' Metadata.
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
			return fmt.Errorf("configuring kubelet of %s: invalid taint %q: correct taints and startupTaints of the NodePool", v.Metadata.Hostname, taint)
		}
		object := map[string]any{"key": taint.Key, "effect": taint.Effect}
		if taint.Value != "" {
			object["value"] = taint.Value
		}
		registered = append(registered, object)
	}

	// With any other of Kubernetes' labels, kubelet does not start.
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

	// The form that kubeadm would write.
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
	// kubeletArg matches flags whose values are names and labels. The flags are in a file
	// read by systemd, between quotes.
	kubeletArg = regexp.MustCompile(`^--[a-z]+(-[a-z]+)*=[A-Za-z0-9./_=,-]+$`)
)

// selfLabel reports whether kubelet may set a label on its own Node. It follows kubelet's own
// check of --node-labels: pkg/kubelet/apis in Kubernetes.
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
