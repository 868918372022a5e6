package cli_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// TestDoctorOfACluster checks that doctor reads the ProxmoxNodeClasses in an API server, and
// reports the error if it cannot.
func TestDoctorOfACluster(t *testing.T) {
	config := simulated(t)
	class := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "doctor"}, Spec: v1alpha1.ProxmoxNodeClassSpec{
		Template: v1alpha1.TemplateReference{Name: "debian-13-k8s"},
	}}
	api := kubeClient(t)
	if err := api.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.Background(), class); err != nil {
			t.Error(err)
		}
	})
	says(t, 0, "ok    template    class doctor on homelab/pve-1, homelab/pve-2: debian-13-k8s", "doctor", "--config", config)

	// In a pod of the chart, doctor needs no flag to find the cluster.
	t.Setenv("KUBECONFIG", controlPlane(t).Kubeconfig)
	for _, environ := range [][]string{nil, {"KUBERNETES_SERVICE_HOST=192.0.2.1", "NUMAFORM_NAMESPACE=numaform"}} {
		var out bytes.Buffer
		cli.Run(t.Context(), cli.Process{Args: []string{"doctor", "--config", config}, Environ: environ, Stdin: strings.NewReader(""), Stdout: &out, Stderr: io.Discard})
		if strings.Contains(out.String(), "class doctor on homelab/pve-1") != (environ != nil) {
			t.Errorf("with the environment %q:\n%s", environ, &out)
		}
	}

	class.Spec.Region = "elsewhere"
	if err := api.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	says(t, 1, `fail  class       class doctor: no Proxmox host matches its spec.region and spec.hosts: spec.region "elsewhere" must be one of homelab`,
		"doctor", "--config", config)
	for _, given := range []struct{ name, kubeconfig, want string }{
		{"nobody", kubeconfig(t, "mallory"), "at the cluster scope: request a ClusterRole that can list it"},
		{"no file", filepath.Join(t.TempDir(), "none"), "fail  classes     reading kubeconfig"},
	} {
		code, stdout, stderr := numaform(t.Context(), t, given.kubeconfig, "doctor", "--config", config)
		if code != 1 || !strings.Contains(stdout, given.want) || !strings.Contains(stdout, "ok    reach       homelab") || stderr != "" {
			t.Errorf("%s: exit code %d, stderr %q, stdout\n%s", given.name, code, stderr, stdout)
		}
	}
}

// simulated starts a simulated Proxmox and returns the path of a configuration for it.
func simulated(t *testing.T) string {
	t.Helper()
	server, err := pvesim.New(pvesim.Config{Hosts: testenv.Hosts(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	dir := t.TempDir()
	for name, content := range map[string]string{
		"ca.pem": string(server.CertPEM()), "token": pvesim.DefaultTokenSecret,
		"numaform.yaml": "clusterID: test\nclusters:\n- {region: homelab, url: " + server.URL() +
			", ca_file: ca.pem, token_id: numaform@pve!scaler, token_secret_file: token}\nengine: {binary: " +
			testenv.Engine(t) + ", plugin_dir: " + testenv.PluginDir(t) + "}\nstate_dir: state\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "numaform.yaml")
}
