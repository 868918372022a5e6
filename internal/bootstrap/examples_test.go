package bootstrap_test

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	strictyaml "sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/bootstrap"
)

// example contains the objects in a directory of examples.
type example struct {
	class   v1alpha1.ProxmoxNodeClass
	secrets map[string]corev1.Secret
}

func readExample(t *testing.T, name string) example {
	t.Helper()
	found := example{secrets: map[string]corev1.Secret{}}
	paths, err := filepath.Glob(filepath.Join("..", "..", "examples", name, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no manifests of example %s: %v", name, err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte("kind: ProxmoxNodeClass")) {
			err = strictyaml.UnmarshalStrict(content, &found.class)
		} else {
			var secret corev1.Secret
			err = strictyaml.UnmarshalStrict(content, &secret)
			found.secrets[secret.Name] = secret
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return found
}

// documents renders the documents for a node of the example's class.
func (e example) documents(t *testing.T, change ...func(*bootstrap.Kubelet)) bootstrap.Documents {
	t.Helper()
	templates := map[string][]byte{}
	secret, ok := e.secrets[e.class.Spec.Metadata.TemplatesRef.Name]
	if !ok {
		t.Fatalf("no Secret %s", e.class.Spec.Metadata.TemplatesRef.Name)
	}
	for key, text := range secret.StringData {
		templates[key] = []byte(text)
	}
	read, err := bootstrap.TemplatesOf(templates)
	if err != nil {
		t.Fatal(err)
	}
	values := someValues(t, change...)
	if uses := bootstrap.UsesBootstrapToken(read); (len(uses) > 0) != (e.class.TokenForm() == v1alpha1.TokenBootstrap) {
		t.Errorf("class %s requests a %s token, but the templates %v use bootstrap tokens", e.class.Name, e.class.TokenForm(), uses)
	}
	if e.class.TokenForm() == v1alpha1.TokenBootstrap {
		values.Kubernetes.BootstrapToken = values.Kubernetes.Token
	}
	if ref := e.class.Spec.Metadata.ValuesRef; ref != nil {
		values.Values = map[string]any{}
		for key, value := range e.secrets[ref.Name].StringData {
			values.Values[key] = value
		}
	}
	return render(t, read, values)
}

func TestK3sExample(t *testing.T) {
	t.Parallel()
	documents := readExample(t, "k3s").documents(t, func(k *bootstrap.Kubelet) { k.Config["maxPods"] = 80 })
	user := readUserData(t, documents[bootstrap.UserData])
	var config struct {
		Server  string   `yaml:"server"`
		Token   string   `yaml:"token"`
		Name    string   `yaml:"node-name"`
		Labels  []string `yaml:"node-label"`
		Taints  []string `yaml:"node-taint"`
		Kubelet []string `yaml:"kubelet-arg"`
	}
	decodeYAML(t, []byte(user.file(t, "/etc/rancher/k3s/config.yaml")), &config)
	if !regexp.MustCompile(`^K10[0-9a-f]{64}::[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(config.Token) {
		t.Errorf("token %q", config.Token)
	}
	if config.Server != "https://10.0.0.1:6443" || config.Name != "workers-2001" {
		t.Errorf("server %q, name %q", config.Server, config.Name)
	}
	want := [][]string{
		{"karpenter.sh/nodepool=workers", "node.kubernetes.io/instance-type=c1.4VCPU-8GB", "topology.kubernetes.io/zone=pve-1"},
		{"karpenter.sh/unregistered=:NoExecute", "team=a:NoSchedule", "cni=:NoExecute"},
		{
			"provider-id=proxmox://region-1/2001", "max-pods=80", "kube-reserved=cpu=80m,memory=512Mi", "system-reserved=memory=100Mi",
			"eviction-hard=memory.available<100Mi,nodefs.available<10%",
		},
	}
	if diff := cmp.Diff(want, [][]string{config.Labels, config.Taints, config.Kubelet}); diff != "" {
		t.Errorf("labels, taints, flags (-want +got):\n%s", diff)
	}
	if user.WriteFiles[0].Permissions != "0600" || user.RunCmd[len(user.RunCmd)-1][2] != "k3s-agent" {
		t.Errorf("files %+v, commands %v", user.WriteFiles, user.RunCmd)
	}
}

func TestTalosExample(t *testing.T) {
	t.Parallel()
	for name, external := range map[string]bool{"alone": false, "with a cloud controller manager": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			documents := readExample(t, "talos").documents(t, func(k *bootstrap.Kubelet) { k.ExternalCloudProvider = external })
			var config map[string]map[string]any
			var version struct {
				Version string         `yaml:"version"`
				Rest    map[string]any `yaml:",inline"`
			}
			decodeYAML(t, documents[bootstrap.UserData], &version)
			if encoded, err := yaml.Marshal(version.Rest); err != nil || yaml.Unmarshal(encoded, &config) != nil {
				t.Fatal("no machine config")
			}
			machine, cluster := config["machine"], config["cluster"]
			if version.Version != "v1alpha1" || machine["type"] != "worker" || machine["token"] != "abcdef.0123456789abcdef" || machine["network"].(map[string]any)["hostname"] != "workers-2001" {
				t.Errorf("machine %v", machine)
			}
			ca := map[string]any{"crt": base64.StdEncoding.EncodeToString([]byte(rootCA))}
			if diff := cmp.Diff(ca, cluster["ca"]); diff != "" || cluster["token"] != "abcdef.0123456789abcdef" {
				t.Errorf("cluster %v", cluster)
			}
			extra := machine["kubelet"].(map[string]any)["extraConfig"].(map[string]any)
			if len(extra["registerWithTaints"].([]any)) != 3 || (extra["providerID"] == nil) != external || (cluster["externalCloudProvider"] != nil) != external {
				t.Errorf("kubelet %v, cluster %v", extra, cluster)
			}
		})
	}
}
