package bootstrap

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
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
	Taints        []Taint
	ClusterDNS    []string
	ClusterDomain string
	MaxPods       *int32
	// KubeReserved, SystemReserved and EvictionHard are amounts by resource or signal.
	KubeReserved, SystemReserved, EvictionHard map[string]string

	CPUManagerPolicy, TopologyManagerPolicy, TopologyManagerScope string
	CPUCFSQuota, FailSwapOn                                       *bool
	// CPUCFSQuotaPeriod and the grace periods are durations such as 30s.
	CPUCFSQuotaPeriod, ShutdownGracePeriod, ShutdownGracePeriodCriticalPods string
	ImageGCHighThresholdPercent, ImageGCLowThresholdPercent                 *int32
	AllowedUnsafeSysctls                                                    []string
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
	labels := selfLabels(kubelet.Labels)
	if err := checkTaints(taints); err != nil {
		return fmt.Errorf("configuring kubelet of %s: %w", v.Metadata.Hostname, err)
	}
	args := []string{"--hostname-override=" + v.Metadata.Hostname}
	if len(labels) > 0 {
		args = append(args, "--node-labels="+joinLabels(labels))
	}
	if kubelet.ExternalCloudProvider {
		args = append(args, "--cloud-provider=external")
	}
	for _, arg := range args {
		if !kubeletArg.MatchString(arg) {
			return fmt.Errorf("configuring kubelet of %s: %q is no name or label of Kubernetes: correct the labels of the NodePool", v.Metadata.Hostname, arg)
		}
	}
	config := kubelet.config(taints)
	if !kubelet.ExternalCloudProvider {
		config["providerID"] = v.Metadata.ProviderID
	}
	v.Kubernetes.KubeletConfiguration, v.Kubernetes.KubeletArgs = config, args
	v.Kubernetes.Labels, v.Kubernetes.Taints = labels, taints
	return nil
}

// config returns the KubeletConfiguration in the form that kubeadm would write.
func (k *Kubelet) config(taints []Taint) map[string]any {
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
		"registerWithTaints": taintObjects(taints),
	}
	set(config, "clusterDomain", k.ClusterDomain)
	set(config, "cpuManagerPolicy", k.CPUManagerPolicy)
	set(config, "cpuCFSQuotaPeriod", k.CPUCFSQuotaPeriod)
	set(config, "shutdownGracePeriod", k.ShutdownGracePeriod)
	set(config, "shutdownGracePeriodCriticalPods", k.ShutdownGracePeriodCriticalPods)
	set(config, "topologyManagerPolicy", k.TopologyManagerPolicy)
	set(config, "topologyManagerScope", k.TopologyManagerScope)
	setPointer(config, "cpuCFSQuota", k.CPUCFSQuota)
	setPointer(config, "failSwapOn", k.FailSwapOn)
	setPointer(config, "imageGCHighThresholdPercent", k.ImageGCHighThresholdPercent)
	setPointer(config, "imageGCLowThresholdPercent", k.ImageGCLowThresholdPercent)
	setPointer(config, "maxPods", k.MaxPods)
	setList(config, "allowedUnsafeSysctls", k.AllowedUnsafeSysctls)
	setList(config, "clusterDNS", k.ClusterDNS)
	setMap(config, "evictionHard", k.EvictionHard)
	setMap(config, "kubeReserved", k.KubeReserved)
	setMap(config, "systemReserved", k.SystemReserved)
	return config
}

func set(config map[string]any, key, value string) {
	if value != "" {
		config[key] = value
	}
}

func setPointer[T any](config map[string]any, key string, value *T) {
	if value != nil {
		config[key] = *value
	}
}

func setList(config map[string]any, key string, values []string) {
	if len(values) > 0 {
		config[key] = slices.Clone(values)
	}
}

func setMap(config map[string]any, key string, values map[string]string) {
	if len(values) > 0 {
		config[key] = anyMap(values)
	}
}

func taintObjects(taints []Taint) []any {
	var objects []any
	for _, taint := range taints {
		object := map[string]any{"key": taint.Key, "effect": taint.Effect}
		set(object, "value", taint.Value)
		objects = append(objects, object)
	}
	return objects
}

var (
	qualifiedName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	labelValue    = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`)
	// kubeletArg matches flags whose values are names and labels. The flags are in a file
	// read by systemd, between quotes.
	kubeletArg = regexp.MustCompile(`^--[a-z]+(-[a-z]+)*=[A-Za-z0-9./_=,-]+$`)
)

func checkTaints(taints []Taint) error {
	for _, taint := range taints {
		effect := taint.Effect == "NoSchedule" || taint.Effect == "PreferNoSchedule" || taint.Effect == "NoExecute"
		if !effect || !qualifiedName.MatchString(taint.Key) || !labelValue.MatchString(taint.Value) {
			return fmt.Errorf("%q is no taint: correct taints and startupTaints of the NodePool", taint)
		}
	}
	return nil
}

// selfLabels returns the labels that kubelet may set on its own Node. With any other of
// Kubernetes' labels, it does not start.
func selfLabels(labels map[string]string) map[string]string {
	allowed := map[string]string{}
	for key, value := range labels {
		if selfLabel(key) {
			allowed[key] = value
		}
	}
	return allowed
}

// selfLabel follows kubelet's own check of --node-labels: pkg/kubelet/apis in Kubernetes.
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

func joinLabels(labels map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, key+"="+labels[key])
	}
	return strings.Join(pairs, ",")
}
