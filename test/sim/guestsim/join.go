package guestsim

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// The files of a kubeadm node, as in the systemd unit of its kubelet.
const (
	bootstrapFile = "/etc/kubernetes/bootstrap-kubelet.conf"
	configFile    = "/var/lib/kubelet/config.yaml"
	flagsFile     = "/var/lib/kubelet/kubeadm-flags.env"
	defaultsFile  = "/etc/default/kubelet"
)

// Join is the data with which a kubelet joins the cluster.
type Join struct {
	// NodeName is the name of the future Node.
	NodeName string
	// Server is the URL of the API server, CA its certificate authority in PEM, and Token
	// the bootstrap token.
	Server string
	CA     []byte
	Token  string

	flags  flags
	config kubeletv1beta1.KubeletConfiguration
	// address is kubelet's --node-ip, or the first static address, or "".
	address string
}

// NewJoin reads documents as a guest does that starts with them.
func NewJoin(documents Documents) (*Join, error) {
	system, err := newSystem(documents)
	if err != nil {
		return nil, err
	}
	return newJoin(system)
}

func newJoin(s *system) (*Join, error) {
	j := &Join{NodeName: strings.ToLower(s.hostname)}
	return j, errors.Join(j.readFlags(s), j.readConfig(s), j.readBootstrap(s))
}

// readFlags reads kubelet's command line from the files of its systemd unit.
func (j *Join) readFlags(s *system) error {
	var words []string
	for _, source := range []struct {
		path, variable string
		needed         bool
	}{{flagsFile, "KUBELET_KUBEADM_ARGS", true}, {defaultsFile, "KUBELET_EXTRA_ARGS", false}} {
		content, ok := s.files[source.path]
		if !ok && source.needed {
			return fmt.Errorf("starting kubelet: no %s", source.path)
		}
		value, err := environment(content.content, source.variable)
		if err != nil {
			return fmt.Errorf("starting kubelet: %s: %w", source.path, err)
		}
		words = append(words, strings.Fields(value)...)
	}
	var err error
	if j.flags, err = parseFlags(words); err != nil {
		return fmt.Errorf("starting kubelet: %w", err)
	}
	if j.flags.hostname != "" {
		j.NodeName = strings.ToLower(j.flags.hostname)
	}
	if s.address.IsValid() {
		j.address = s.address.String()
	}
	if j.flags.nodeIP != "" {
		j.address = j.flags.nodeIP
	}
	return nil
}

// environment returns a variable of a systemd EnvironmentFile.
func environment(content, name string) (string, error) {
	value := ""
	for line := range strings.Lines(content) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		key, text, ok := strings.Cut(line, "=")
		if !ok {
			return "", fmt.Errorf("%q is not an assignment", line)
		}
		if strings.TrimSpace(key) == name {
			value = strings.Trim(text, `"'`)
		}
	}
	return value, nil
}

// readConfig reads the KubeletConfiguration as strictly as kubelet does.
func (j *Join) readConfig(s *system) error {
	content, ok := s.files[configFile]
	if !ok {
		return fmt.Errorf("starting kubelet: no %s", configFile)
	}
	if err := decodeConfig(content.content, &j.config); err != nil {
		return fmt.Errorf("starting kubelet: %s: %w", configFile, err)
	}
	if err := checkConfig(&j.config); err != nil {
		return fmt.Errorf("starting kubelet: %s: %w", configFile, err)
	}
	path := j.config.Authentication.X509.ClientCAFile
	authority, ok := s.files[path]
	if !ok {
		return fmt.Errorf("starting kubelet: no %s", path)
	}
	if _, err := certutil.ParseCertsPEM([]byte(authority.content)); err != nil {
		return fmt.Errorf("starting kubelet: %s: %w", path, err)
	}
	return nil
}

// checkConfig returns an error for a configuration with which kubelet does not start, or
// Karpenter does not work.
func checkConfig(c *kubeletv1beta1.KubeletConfiguration) error {
	switch {
	case c.RegisterNode != nil && !*c.RegisterNode:
		return errors.New("registerNode is off")
	case !hasTaint(c.RegisterWithTaints, "karpenter.sh/unregistered", corev1.TaintEffectNoExecute):
		return errors.New("registerWithTaints lacks karpenter.sh/unregistered:NoExecute: pods would run before Karpenter registers the Node")
	case c.Authentication.X509.ClientCAFile == "":
		return errors.New("authentication.x509.clientCAFile is empty")
	case c.CPUManagerPolicy == "static" && c.KubeReserved["cpu"] == "" && c.SystemReserved["cpu"] == "":
		return errors.New("cpuManagerPolicy static needs reserved cpu")
	}
	return nil
}

// decodeConfig decodes a document as kubelet does: unknown and duplicate fields are errors.
func decodeConfig(text string, into *kubeletv1beta1.KubeletConfiguration) error {
	scheme := runtime.NewScheme()
	if err := kubeletv1beta1.AddToScheme(scheme); err != nil {
		return err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	_, kind, err := decoder.Decode([]byte(text), nil, into)
	if err != nil {
		return err
	}
	if want := kubeletv1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration"); *kind != want {
		return fmt.Errorf("its kind is %s", kind)
	}
	return nil
}

func hasTaint(taints []corev1.Taint, key string, effect corev1.TaintEffect) bool {
	for _, taint := range taints {
		if taint.Key == key && taint.Effect == effect {
			return true
		}
	}
	return false
}

// readBootstrap reads the kubeconfig that contains the token.
func (j *Join) readBootstrap(s *system) error {
	content, ok := s.files[bootstrapFile]
	if !ok {
		return fmt.Errorf("starting kubelet: no %s", bootstrapFile)
	}
	if content.mode&0o077 != 0 {
		return fmt.Errorf("starting kubelet: %s has mode %04o: others can read the token, write permissions: '0600'", bootstrapFile, content.mode)
	}
	loaded, err := clientcmd.Load([]byte(content.content))
	if err != nil {
		return fmt.Errorf("starting kubelet: %s: %w", bootstrapFile, err)
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("starting kubelet: %s: %w", bootstrapFile, err)
	}
	j.Server, j.CA, j.Token = config.Host, config.CAData, config.BearerToken
	switch {
	case config.Insecure || len(config.CAData) == 0:
		return fmt.Errorf("starting kubelet: %s: no inline certificate authority", bootstrapFile)
	case config.BearerToken == "":
		return fmt.Errorf("starting kubelet: %s: no token", bootstrapFile)
	}
	return nil
}
