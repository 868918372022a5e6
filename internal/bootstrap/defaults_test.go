package bootstrap_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"pgregory.net/rapid"
	strictyaml "sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/bootstrap"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestDefaultsGolden checks the default documents against golden files.
func TestDefaultsGolden(t *testing.T) {
	t.Parallel()
	documents := render(t, bootstrap.Defaults(), someValues(t))
	archive := &txtar.Archive{Comment: []byte("The default documents for a node of a kubeadm cluster.\n")}
	for _, name := range []string{bootstrap.UserData, bootstrap.MetaData, bootstrap.NetworkConfig} {
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: documents[name]})
	}
	const golden = "testdata/defaults.txtar"
	if *update {
		if err := os.WriteFile(golden, txtar.Format(archive), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(txtar.Format(archive))); diff != "" {
		t.Errorf("documents (-golden +rendered), go test ./internal/bootstrap -update rewrites them:\n%s", diff)
	}
	if len(documents[bootstrap.VendorData]) > 0 || len(documents) != 3 {
		t.Errorf("the defaults contain vendor-data: %q", documents[bootstrap.VendorData])
	}
}

// TestHugePages checks that huge pages are reserved before kubelet starts, and at every
// boot.
func TestHugePages(t *testing.T) {
	t.Parallel()
	values := someValues(t)
	values.Resources.HugePages2Mi = 512
	config := readUserData(t, render(t, bootstrap.Defaults(), values)[bootstrap.UserData])
	const path = "/etc/tmpfiles.d/kubernetes-hugepages.conf"
	const want = "w /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages - - - - 512\nw /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages - - - - 0\n"
	if got := config.file(t, path); got != want {
		t.Errorf("%s is\n%swant\n%s", path, got, want)
	}
	text := fmt.Sprint(config.RunCmd)
	if at := strings.Index(text, "systemd-tmpfiles --create "+path); at < 0 || at > strings.Index(text, "kubelet]") {
		t.Errorf("the commands are %s", text)
	}
}

// TestDefaultsAreWhatKubeadmLeaves checks that the default files can be parsed as kubelet
// parses them, and match kubeadm's.
func TestDefaultsAreWhatKubeadmLeaves(t *testing.T) {
	t.Parallel()
	config := readUserData(t, render(t, bootstrap.Defaults(), someValues(t))[bootstrap.UserData])
	for path, want := range map[string]string{
		"/etc/kubernetes/bootstrap-kubelet.conf": "0600",
		"/etc/kubernetes/pki/ca.crt":             "0644",
		"/var/lib/kubelet/config.yaml":           "0644",
		"/var/lib/kubelet/kubeadm-flags.env":     "0644",
	} {
		for _, file := range config.WriteFiles {
			if file.Path == path && file.Permissions != want {
				t.Errorf("%s has permissions %s, want %s", path, file.Permissions, want)
			}
		}
		config.file(t, path)
	}
	if got := config.file(t, "/etc/kubernetes/pki/ca.crt"); got != rootCA {
		t.Errorf("CA %q", got)
	}
	kubeconfig, err := clientcmd.RESTConfigFromKubeConfig([]byte(config.file(t, "/etc/kubernetes/bootstrap-kubelet.conf")))
	if err != nil {
		t.Fatal(err)
	}
	if kubeconfig.BearerToken != "abcdef.0123456789abcdef" || kubeconfig.Host != "https://10.0.0.1:6443" || string(kubeconfig.CAData) != rootCA {
		t.Errorf("kubeconfig for %s with token %s and CA %q", kubeconfig.Host, kubeconfig.BearerToken, kubeconfig.CAData)
	}
	const flags = `KUBELET_KUBEADM_ARGS="--hostname-override=workers-2001 --node-labels=` +
		`karpenter.sh/nodepool=workers,node.kubernetes.io/instance-type=c1.4VCPU-8GB,topology.kubernetes.io/zone=pve-1"` + "\n"
	if got := config.file(t, "/var/lib/kubelet/kubeadm-flags.env"); got != flags {
		t.Errorf("flags\n%swant\n%s", got, flags)
	}
	if last := config.RunCmd[len(config.RunCmd)-1]; strings.Join(last, " ") != "systemctl restart kubelet" {
		t.Errorf("the last command is %q", last)
	}
}

// kubeletConfig parses kubelet's configuration in user-data, and fails on an unknown
// field.
func kubeletConfig(t *testing.T, values bootstrap.Values) kubeletv1beta1.KubeletConfiguration {
	t.Helper()
	user := readUserData(t, render(t, bootstrap.Defaults(), values)[bootstrap.UserData])
	var config kubeletv1beta1.KubeletConfiguration
	if err := strictyaml.UnmarshalStrict([]byte(user.file(t, "/var/lib/kubelet/config.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	return config
}

func TestKubeletConfiguration(t *testing.T) {
	t.Parallel()
	config := kubeletConfig(t, someValues(t))
	taints := []corev1.Taint{
		{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute},
		{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule},
		{Key: "cni", Effect: corev1.TaintEffectNoExecute},
	}
	if diff := cmp.Diff(taints, config.RegisterWithTaints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	if config.ProviderID != "proxmox://region-1/2001" || !config.RotateCertificates || config.CgroupDriver != "systemd" {
		t.Errorf("providerID %q, rotation %v, cgroups by %s", config.ProviderID, config.RotateCertificates, config.CgroupDriver)
	}
	if config.Authentication.X509.ClientCAFile != "/etc/kubernetes/pki/ca.crt" || *config.Authentication.Anonymous.Enabled ||
		config.Authorization.Mode != kubeletv1beta1.KubeletAuthorizationModeWebhook {
		t.Errorf("kubelet accepts anonymous requests: %+v %+v", config.Authentication, config.Authorization)
	}
	if diff := cmp.Diff(map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"}, config.EvictionHard); diff != "" {
		t.Errorf("eviction (-want +got):\n%s", diff)
	}
	if config.KubeReserved["memory"] != "512Mi" || config.SystemReserved["memory"] != "100Mi" || config.ClusterDNS[0] != "10.96.0.10" {
		t.Errorf("reserved %v and %v, DNS %v", config.KubeReserved, config.SystemReserved, config.ClusterDNS)
	}
}

// TestKubeletOptions checks that further options of a class reach kubelet's configuration
// file, in the form that kubelet's type accepts.
func TestKubeletOptions(t *testing.T) {
	t.Parallel()
	no, pods, high, low := false, int32(80), int32(90), int32(70)
	class, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.KubeletConfiguration{
		MaxPods:                         &pods,
		CPUManagerPolicy:                "static",
		TopologyManagerPolicy:           "single-numa-node",
		TopologyManagerScope:            "pod",
		CPUCFSQuota:                     &no,
		FailSwapOn:                      &no,
		CPUCFSQuotaPeriod:               &metav1.Duration{Duration: 5 * time.Millisecond},
		ShutdownGracePeriod:             &metav1.Duration{Duration: 45 * time.Second},
		ShutdownGracePeriodCriticalPods: &metav1.Duration{Duration: 15 * time.Second},
		ImageGCHighThresholdPercent:     &high,
		ImageGCLowThresholdPercent:      &low,
		AllowedUnsafeSysctls:            []string{"net.core.*"},
	})
	if err != nil {
		t.Fatal(err)
	}
	config := kubeletConfig(t, someValues(t, func(k *bootstrap.Kubelet) {
		k.ExternalCloudProvider, k.Config["clusterDomain"] = true, "example.org"
		maps.Copy(k.Config, class)
	}))
	got := fmt.Sprintln(config.ProviderID, config.ClusterDomain, config.MaxPods, config.CPUManagerPolicy, config.TopologyManagerPolicy,
		config.TopologyManagerScope, *config.CPUCFSQuota, *config.FailSwapOn, config.CPUCFSQuotaPeriod.Duration,
		config.ShutdownGracePeriod.Duration, config.ShutdownGracePeriodCriticalPods.Duration,
		*config.ImageGCHighThresholdPercent, *config.ImageGCLowThresholdPercent, config.AllowedUnsafeSysctls)
	want := fmt.Sprintln("", "example.org", 80, "static", "single-numa-node", "pod", false, false, "5ms", "45s", "15s", 90, 70, []string{"net.core.*"})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestCloudControllerManager checks that with an external cloud provider, kubelet gets the
// flag and no providerID.
func TestCloudControllerManager(t *testing.T) {
	t.Parallel()
	values := someValues(t, func(k *bootstrap.Kubelet) { k.ExternalCloudProvider = true })
	flags := readUserData(t, render(t, bootstrap.Defaults(), values)[bootstrap.UserData]).file(t, "/var/lib/kubelet/kubeadm-flags.env")
	if !strings.HasSuffix(flags, ` --cloud-provider=external"`+"\n") || kubeletConfig(t, values).ProviderID != "" {
		t.Errorf("flags %s, providerID %q", flags, kubeletConfig(t, values).ProviderID)
	}
}

// TestSwap checks that swap stays enabled if kubelet is configured to accept it.
func TestSwap(t *testing.T) {
	t.Parallel()
	for name, setting := range map[string]*bool{"unset": nil, "on": new(bool)} {
		values := someValues(t, func(k *bootstrap.Kubelet) {
			if setting != nil {
				k.Config["failSwapOn"] = *setting
			}
		})
		text := string(render(t, bootstrap.Defaults(), values)[bootstrap.UserData])
		if strings.Contains(text, "swapoff") != (setting == nil) {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

func TestSSHKeys(t *testing.T) {
	t.Parallel()
	values := someValues(t)
	values.Values = map[string]any{"SSHAuthorizedKeys": "ssh-ed25519 AAAA a@b\nfrom=\"10.0.0.0/8,::1\" ssh-rsa BBBB \"c\": d\n"}
	got := readUserData(t, render(t, bootstrap.Defaults(), values)[bootstrap.UserData]).SSHKeys
	want := []string{"ssh-ed25519 AAAA a@b", `from="10.0.0.0/8,::1" ssh-rsa BBBB "c": d`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
}

// TestNothingIsInjected checks that malicious strings in external values stay in their
// fields, and that the documents keep their structure.
func TestNothingIsInjected(t *testing.T) {
	t.Parallel()
	plain := readUserData(t, render(t, bootstrap.Defaults(), someValues(t))[bootstrap.UserData])
	for _, text := range worst() {
		values := someValues(t)
		values.Metadata.Hostname, values.Metadata.InstanceUUID = text, "i"+text
		values.Kubernetes.RootCA, values.Kubernetes.APIServer, values.Kubernetes.Token = text, text, text
		values.Kubernetes.KubeletConfiguration["providerID"] = text
		values.Values = map[string]any{"SSHAuthorizedKeys": "k" + text}
		values.Network.DNSServers = []string{text}
		checkForm(t, plain, render(t, bootstrap.Defaults(), values), values)
	}
	hostile := rapid.OneOf(rapid.SampledFrom(worst()), rapid.String())
	rapid.Check(t, func(r *rapid.T) {
		values := someValues(t)
		values.Metadata.Hostname = hostile.Draw(r, "hostname")
		values.Metadata.InstanceUUID = "i" + hostile.Draw(r, "uuid")
		values.Kubernetes.RootCA = hostile.Draw(r, "ca")
		values.Kubernetes.APIServer = hostile.Draw(r, "server")
		values.Kubernetes.Token = hostile.Draw(r, "token")
		values.Kubernetes.KubeletConfiguration["providerID"] = hostile.Draw(r, "provider")
		values.Values = map[string]any{"SSHAuthorizedKeys": "k" + hostile.Draw(r, "key")}
		values.Network.DNSServers = []string{hostile.Draw(r, "dns")}
		documents, err := bootstrap.Render(bootstrap.Defaults(), values)
		if err != nil {
			r.Fatal(err)
		}
		checkForm(r, plain, documents, values)
	})
}

// worst returns strings that could end their field in a document or have a syntactic
// meaning there.
func worst() []string {
	return []string{
		"x\"\nruncmd: [[sh, -c, evil]]", "'; evil; '", "{{ .Kubernetes.BootstrapToken }}", "\\\"", "x\n- path: /etc/passwd", "# x", "a: b",
		"!!binary x", "\u2028", "\t\r\n", "&a", "*a", "|\n  x", "%YAML 1.2", "---\n", "...", "\x00", "\u0085\u0085", "\x7f\u009f\ufeff\uffff", "$(evil)", "`evil`", "</script>",
		"null", "true", "0x10", "~", "", "é",
	}
}

// checkForm checks that documents have the structure of plain, the user-data of harmless
// values, and that each value is in its field.
func checkForm(r rapid.TB, plain cloudConfig, documents bootstrap.Documents, values bootstrap.Values) {
	var user cloudConfig
	if err := strictyaml.UnmarshalStrict(documents[bootstrap.UserData], &map[string]any{}); err != nil {
		r.Fatal(err)
	}
	decodeYAML(r, documents[bootstrap.UserData], &user)
	if diff := cmp.Diff(plain.RunCmd, user.RunCmd); diff != "" || len(user.WriteFiles) != len(plain.WriteFiles) {
		r.Fatalf("%d files, commands (-want +got):\n%s", len(user.WriteFiles), diff)
	}
	for i, file := range user.WriteFiles {
		if file.Path != plain.WriteFiles[i].Path || file.Permissions != plain.WriteFiles[i].Permissions {
			r.Fatalf("file %d is %s %s", i, file.Permissions, file.Path)
		}
	}
	if got := user.file(r, "/etc/kubernetes/pki/ca.crt"); got != strings.ToValidUTF8(values.Kubernetes.RootCA, "\ufffd") {
		r.Fatalf("CA %q, want %q", got, values.Kubernetes.RootCA)
	}
	if user.Hostname != values.Metadata.Hostname {
		r.Fatalf("hostname %q, want %q", user.Hostname, values.Metadata.Hostname)
	}
	var meta struct {
		ID   string `yaml:"instance-id"`
		Name string `yaml:"local-hostname"`
	}
	decodeYAML(r, documents[bootstrap.MetaData], &meta)
	if meta.ID != values.Metadata.InstanceUUID || meta.Name != values.Metadata.Hostname {
		r.Fatalf("meta-data %+v", meta)
	}
	var network struct {
		Version   int            `yaml:"version"`
		Ethernets map[string]any `yaml:"ethernets"`
	}
	decodeYAML(r, documents[bootstrap.NetworkConfig], &network)
	if network.Version != 2 || len(network.Ethernets) != 2 {
		r.Fatalf("network %+v", network)
	}
}
