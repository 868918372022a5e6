package guestsim_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"os"
	"strings"
	"testing"

	"github.com/kdomanski/iso9660"

	"github.com/numaform/numaform/test/sim/guestsim"
)

// writtenBy returns an image, without Rock Ridge and Joliet, from a writer other than
// numaform's.
func writtenBy(t *testing.T, label string, files map[string]string) []byte {
	t.Helper()
	writer, err := iso9660.NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Cleanup() //nolint:errcheck // a temporary directory
	for name, content := range files {
		if err := writer.AddFile(strings.NewReader(content), name); err != nil {
			t.Fatal(err)
		}
	}
	var image bytes.Buffer
	if err := writer.WriteTo(&image, label); err != nil {
		t.Fatal(err)
	}
	return image.Bytes()
}

func TestReadSeed(t *testing.T) {
	t.Parallel()
	files := map[string]string{"user-data": "#cloud-config\n", "meta-data": "{}", "network-config": "version: 2\n"}
	for _, label := range []string{"cidata", "CIDATA"} {
		got, err := guestsim.ReadSeed(writtenBy(t, label, files))
		if err != nil || string(got.UserData) != files["user-data"] || string(got.MetaData) != "{}" || string(got.NetworkConfig) != "version: 2\n" || got.VendorData != nil {
			t.Errorf("%s: got %+v, %v", label, got, err)
		}
	}
	whole := writtenBy(t, "cidata", files)
	for name, tt := range map[string]struct {
		image []byte
		want  string
	}{
		"label":     {writtenBy(t, "config-2", files), `the volume label is "config-2": cloud-init requires cidata`},
		"file":      {writtenBy(t, "cidata", map[string]string{"user-data": "x"}), "it contains no meta-data"},
		"no image":  {[]byte("#cloud-config\n"), "not an ISO 9660 image"},
		"cut off":   {whole[:len(whole)-2*2048], "is outside the image"},
		"no volume": {bytes.Replace(whole, []byte("\x01CD001"), []byte("\x03CD001"), 1), "without a primary volume"},
	} {
		if _, err := guestsim.ReadSeed(tt.image); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// FuzzReadSeed checks that no image makes the reader panic.
func FuzzReadSeed(f *testing.F) {
	f.Add([]byte("CD001"))
	f.Fuzz(func(t *testing.T, tail []byte) {
		image := make([]byte, 20*2048)
		copy(image[16*2048:], "\x01CD001\x01")
		copy(image[17*2048:], "\xffCD001\x01")
		image[16*2048+158], image[16*2048+167] = 18, 8
		copy(image[18*2048:], tail)
		_, _ = guestsim.ReadSeed(image)
	})
}

// documents returns a valid seed with parts of it replaced.
func documents(t *testing.T, replaced ...string) guestsim.Documents {
	t.Helper()
	authority, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	user := strings.NewReplacer(
		"KUBECONFIG", base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(bootstrapKubeconfig, "CERTIFICATE", base64.StdEncoding.EncodeToString(authority)))),
		"CERTIFICATE", indented(string(authority)),
	).Replace(goodUserData)
	return guestsim.Documents{
		UserData:      []byte(strings.NewReplacer(replaced...).Replace(user)),
		MetaData:      []byte(strings.NewReplacer(replaced...).Replace("instance-id: a\nlocal-hostname: Worker-1\n")),
		NetworkConfig: []byte(strings.NewReplacer(replaced...).Replace("version: 2\nethernets: {eth0: {addresses: [192.0.2.7/24]}}\n")),
	}
}

func indented(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

const bootstrapKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: default, cluster: {server: "https://192.0.2.1:6443", certificate-authority-data: CERTIFICATE}}]
users: [{name: kubelet, user: {token: abcdef.0123456789abcdef}}]
contexts: [{name: default, context: {cluster: default, user: kubelet}}]
current-context: default
`

const goodUserData = `#cloud-config
package_update: false
write_files:
- path: /var/lib/kubelet/kubeadm-flags.env
  content: |
    KUBELET_KUBEADM_ARGS="--node-labels=example.com/a=b,node.kubernetes.io/c=d"
- {path: /etc/default/kubelet, content: "# none\nKUBELET_EXTRA_ARGS=--v=2\n"}
- path: /var/lib/kubelet/config.yaml
  permissions: 0600
  content: |
    apiVersion: kubelet.config.k8s.io/v1beta1
    kind: KubeletConfiguration
    authentication: {x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
    providerID: proxmox://homelab/100
    registerWithTaints: [{key: karpenter.sh/unregistered, effect: NoExecute}]
- path: /etc/kubernetes/bootstrap-kubelet.conf
  permissions: "0600"
  encoding: b64
  content: KUBECONFIG
- path: /etc/kubernetes/pki/ca.crt
  content: |
CERTIFICATE
runcmd:
- systemctl restart kubelet
`

func TestNewJoin(t *testing.T) {
	t.Parallel()
	join, err := guestsim.NewJoin(documents(t))
	if err != nil {
		t.Fatal(err)
	}
	if join.NodeName != "worker-1" || join.Server != "https://192.0.2.1:6443" || join.Token != "abcdef.0123456789abcdef" || len(join.CA) == 0 {
		t.Errorf("got %+v", join)
	}
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	if _, err := writer.Write([]byte("KUBELET_KUBEADM_ARGS=--hostname-override=other\n")); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	overridden := documents(t, "  content: |\n    KUBELET_KUBEADM_ARGS=\"--node-labels=example.com/a=b,node.kubernetes.io/c=d\"",
		"  encoding: gz+b64\n  content: "+base64.StdEncoding.EncodeToString(packed.Bytes()))
	if join, err := guestsim.NewJoin(overridden); err != nil || join.NodeName != "other" {
		t.Errorf("got %+v, %v", join, err)
	}
}

// TestNewJoinRefuses checks that the error names the fault of a seed.
func TestNewJoinRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, old, new, want string }{
		{"header", "#cloud-config", "#cloud-confg", `its first line is "#cloud-confg", not #cloud-config`},
		{"yaml", "runcmd:", "runcmd: [", "reading user-data: yaml"},
		{"key", "package_update", "packageupdate", `unknown key "packageupdate"`},
		{"file key", "permissions: 0600", "permission: 0600", "field permission not found"},
		{"encoding", "encoding: b64", "encoding: rot13", `unknown encoding "rot13"`},
		{"base64", "  content: YXBp", "  content: -YXBp", "illegal base64"},
		{"path", "path: /etc/kubernetes/pki/ca.crt", "path: etc/kubernetes/pki/ca.crt", "path must be absolute"},
		{"permissions", `permissions: "0600"`, `permissions: "0900"`, "invalid syntax"},
		{"readable token", `permissions: "0600"`, `permissions: "0640"`, "has mode 0640: others can read the token"},
		{"runcmd", "runcmd:\n- systemctl", "runcmd: systemctl", "reading runcmd: must be a list"},
		{"no config", "path: /var/lib/kubelet/config.yaml", "path: /var/lib/kubelet/config.yml", "no /var/lib/kubelet/config.yaml"},
		{"no flags", "kubeadm-flags.env", "flags.env", "no /var/lib/kubelet/kubeadm-flags.env"},
		{"no kubeconfig", "bootstrap-kubelet.conf", "kubelet.conf", "no /etc/kubernetes/bootstrap-kubelet.conf"},
		{"no authority", "path: /etc/kubernetes/pki/ca.crt", "path: /etc/kubernetes/ca.crt", "no /etc/kubernetes/pki/ca.crt"},
		{"config key", "providerID:", "providerId:", `unknown field "providerId"`},
		{"config kind", "kind: KubeletConfiguration", "kind: KubeProxyConfiguration", "KubeProxyConfiguration"},
		{"taint", "karpenter.sh/unregistered, effect: NoExecute", "karpenter.sh/unregistered, effect: NoSchedule", "lacks karpenter.sh/unregistered:NoExecute"},
		{"flag", "--v=2", "--vv=2", "unknown flag --vv"},
		{"label", "node.kubernetes.io/c", "node-role.kubernetes.io/c", "kubelet may not set node-role.kubernetes.io/c"},
		{"label value", "a=b,", "a=b!,", `"example.com/a=b!"`},
		{"instance", "instance-id: a", "instance: a", "instance-id and local-hostname are required"},
		{"network", "version: 2", "version: 3", "version is 3"},
		{"address", "192.0.2.7/24", "192.0.2.777/24", "192.0.2.777"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := guestsim.NewJoin(documents(t, tt.old, tt.new)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
