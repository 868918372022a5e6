package testenv_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

func TestEngine(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), testenv.Engine(t), "version")
	cmd.Env = testenv.CleanEnv()
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), " v1.") || errs.Len() != 0 {
		t.Errorf("got %q, %q, %v", out, errs.String(), err)
	}
	if info, err := os.Stat(testenv.PluginDir(t)); err != nil || !info.IsDir() {
		t.Errorf("plugin directory: %v", err)
	}
}

func TestCleanEnv(t *testing.T) {
	for _, name := range []string{"TF_LOG", "PROXMOX_VE_API_TOKEN", "NUMAFORM_CONFIG", "KUBECONFIG"} {
		t.Setenv(name, "leaks")
	}
	t.Setenv("TF_CLI_CONFIG_FILE", "/leaks")
	env := testenv.CleanEnv()
	if text := strings.Join(env, "\n"); strings.Contains(text, "leaks") {
		t.Errorf("leaks:\n%s", text)
	}
	if !slices.Contains(env, "PATH="+os.Getenv("PATH")) {
		t.Error("PATH is lost")
	}
}

func TestProxmox(t *testing.T) {
	t.Parallel()
	server := testenv.Proxmox(t, func(cfg *pvesim.Config) { cfg.Pools = []string{"numaform"} })
	client := testenv.Client(t, server)
	snapshot, err := client.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if pools := snapshot.Regions[0].Pools; !slices.Equal(pools, []string{"numaform"}) {
		t.Errorf("pools are %v", pools)
	}
	for _, name := range []topology.HostName{"pve-1", "pve-2"} {
		host := snapshot.Host(topology.HostID{Region: testenv.Region, Host: name})
		if host == nil || host.Problem != "" || len(host.Warnings) != 0 || len(host.Templates) != 1 {
			t.Fatalf("%s: %+v", name, host)
		}
		if template := host.Templates[0]; template.Name != testenv.Template || template.Problem != "" {
			t.Errorf("%s: %+v", name, template)
		}
	}
	if can, _ := client.CanSetAffinity(); can {
		t.Error("the token may set affinity")
	}
	if can, reason := testenv.RootClient(t, server).CanSetAffinity(); !can {
		t.Errorf("root@pam may not set affinity: %s", reason)
	}
	pem, err := os.ReadFile(testenv.CertFile(t, server))
	if err != nil || string(pem) != string(server.CertPEM()) {
		t.Errorf("certificate: %v", err)
	}
}
