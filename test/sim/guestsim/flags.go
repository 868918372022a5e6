package guestsim

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubelet/pkg/apis"
)

// flags is the simulated part of kubelet's command line.
type flags struct {
	hostname, nodeIP, providerID string
	external                     bool
	labels                       map[string]string
}

// parseFlags parses kubelet's flags. They must have the form --name=value, as kubeadm
// writes them.
func parseFlags(words []string) (flags, error) {
	f := flags{labels: map[string]string{}}
	ignored := ""
	known := map[string]*string{
		"--hostname-override": &f.hostname, "--node-ip": &f.nodeIP, "--provider-id": &f.providerID,
		"--container-runtime-endpoint": &ignored, "--image-service-endpoint": &ignored, "--v": &ignored,
		"--root-dir": &ignored, "--cert-dir": &ignored,
	}
	for _, word := range words {
		name, value, ok := strings.Cut(word, "=")
		if !ok || !strings.HasPrefix(name, "--") {
			return f, fmt.Errorf("argument %q is not --flag=value", word)
		}
		if err := f.set(known, name, value); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (f *flags) set(known map[string]*string, name, value string) error {
	if into := known[name]; into != nil {
		*into = value
		return nil
	}
	switch name {
	case "--node-labels":
		return f.addLabels(value)
	case "--cloud-provider":
		if value != "external" && value != "" {
			return fmt.Errorf("--cloud-provider is %q: kubelet supports only external", value)
		}
		f.external = value == "external"
		return nil
	}
	return fmt.Errorf("unknown flag %s", name)
}

// addLabels parses --node-labels. It returns an error for Kubernetes labels that kubelet
// may not set, because kubelet does not start with them.
func (f *flags) addLabels(text string) error {
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("--node-labels: %q is not key=value", pair)
		}
		problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		if len(problems) > 0 {
			return fmt.Errorf("--node-labels: %q: %s", pair, strings.Join(problems, ", "))
		}
		domain, _, _ := strings.Cut(key, "/")
		reserved := strings.HasSuffix("."+domain, ".kubernetes.io") || strings.HasSuffix("."+domain, ".k8s.io")
		if strings.Contains(key, "/") && reserved && !apis.IsKubeletLabel(key) {
			return fmt.Errorf("--node-labels: kubelet may not set %s", key)
		}
		f.labels[key] = value
	}
	return nil
}
