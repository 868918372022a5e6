package bootstrap_test

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/bootstrap"
	"github.com/numaform/numaform/topology"
)

const rootCA = "-----BEGIN CERTIFICATE-----\nMIIBthisIsNoRealOne==\n-----END CERTIFICATE-----\n"

// someVM returns a VM of a NodePool.
func someVM() *fleet.VM {
	return &fleet.VM{
		Key: "0123456789abcdef0123456789abcdef", VMID: 2001, Name: "workers-2001",
		Spec: fleet.Spec{
			InstanceType: "c1.4VCPU-8GB", NodeClass: "default", VCPUs: 4, MemoryMiB: 8192, DiskGiB: 40, Tags: []string{"blue", "team-a"},
		},
		Placement: fleet.Placement{Host: topology.HostID{Region: "region-1", Host: "pve-1"}},
		Source:    fleet.Source{DiskGiB: 20},
	}
}

// someValues returns the values of a VM in a cluster.
func someValues(t testing.TB, change ...func(*bootstrap.Kubelet)) bootstrap.Values {
	t.Helper()
	values := bootstrap.ValuesOf(someVM())
	values.Kubernetes.Version = "v1.36.3"
	values.Kubernetes.RootCA = rootCA
	values.Kubernetes.APIServer = "https://10.0.0.1:6443"
	values.Kubernetes.Token = "abcdef.0123456789abcdef"
	kubelet := bootstrap.Kubelet{
		Labels: map[string]string{
			"karpenter.sh/nodepool": "workers", "node.kubernetes.io/instance-type": "c1.4VCPU-8GB",
			"topology.kubernetes.io/zone": "pve-1", "scheduling.k8s.io/only-karpenter-may": "yes",
		},
		Taints: []bootstrap.Taint{{Key: "team", Value: "a", Effect: "NoSchedule"}, {Key: "cni", Effect: "NoExecute"}, {Key: "karpenter.sh/unregistered", Effect: "NoExecute"}},
		Config: map[string]any{
			"clusterDNS":     []string{"10.96.0.10"},
			"kubeReserved":   map[string]string{"cpu": "80m", "memory": "512Mi"},
			"systemReserved": map[string]string{"memory": "100Mi"},
			"evictionHard":   map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"},
		},
	}
	for _, edit := range change {
		edit(&kubelet)
	}
	if err := values.Configure(kubelet); err != nil {
		t.Fatal(err)
	}
	return values
}

func render(t testing.TB, templates bootstrap.Templates, values bootstrap.Values) bootstrap.Documents {
	t.Helper()
	documents, err := bootstrap.Render(templates, values)
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

// withUserData returns the default templates with different user-data.
func withUserData(text string) bootstrap.Templates {
	templates := bootstrap.Defaults()
	templates[bootstrap.UserData] = text
	return templates
}

// cloudConfig is the part of the default user-data that cloud-init reads.
type cloudConfig struct {
	Hostname         string   `yaml:"hostname"`
	PreserveHostname bool     `yaml:"preserve_hostname"`
	SSHKeys          []string `yaml:"ssh_authorized_keys"`
	WriteFiles       []struct {
		Path        string `yaml:"path"`
		Permissions string `yaml:"permissions"`
		Content     string `yaml:"content"`
	} `yaml:"write_files"`
	RunCmd [][]string `yaml:"runcmd"`
}

// readUserData parses user-data with exactly the known keys, as strictly as `cloud-init
// schema`.
func readUserData(t testing.TB, data []byte) cloudConfig {
	t.Helper()
	if !strings.HasPrefix(string(data), "#cloud-config\n") {
		t.Fatalf("user-data begins with %q", strings.SplitN(string(data), "\n", 2)[0])
	}
	var config cloudConfig
	decodeYAML(t, data, &config)
	return config
}

func decodeYAML(t rapid.TB, data []byte, into any) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
}

// file returns the content of a file that user-data writes.
func (c cloudConfig) file(t rapid.TB, path string) string {
	t.Helper()
	for _, file := range c.WriteFiles {
		if file.Path == path {
			return file.Content
		}
	}
	t.Fatalf("%s is not written", path)
	return ""
}
