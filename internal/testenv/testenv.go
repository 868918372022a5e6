// Package testenv provides a common environment for the tests of several packages: the
// engine, the provider, a simulated Proxmox with two hosts, Kubernetes control planes,
// servers for states, and environment variables without the user's own settings. If a
// program is missing, the test that needs it fails. Under go test -short, tests that need
// an engine, the provider, a control plane or PostgreSQL are skipped.
package testenv

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// Region is the quickstart's Proxmox cluster.
const Region topology.RegionName = "homelab"

// Template is the name of the template on every host of the quickstart.
const Template = "debian-13-k8s"

// Engine returns the path of the OpenTofu or Terraform to test with.
func Engine(t testing.TB) string {
	t.Helper()
	return enginetest.Binary(t)
}

// PluginDir returns the filesystem mirror that holds the Proxmox provider.
func PluginDir(t testing.TB) string {
	t.Helper()
	return enginetest.Mirror(t)
}

// CleanEnv returns the part of this process's environment that a program under test needs,
// as KEY=value. It excludes the settings of Terraform, Proxmox, Kubernetes and numaform,
// gives the engine an empty CLI configuration file, and disables its check for new
// versions.
func CleanEnv() []string {
	keep := []string{"HOME", "LANG", "PATH", "TMPDIR", "USER", "GOCOVERDIR"}
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !slices.Contains(keep, name)
	})
	env = append(env, "TF_CLI_CONFIG_FILE="+os.DevNull, "CHECKPOINT_DISABLE=1")
	slices.Sort(env)
	return env
}

// Hosts returns two hosts of Region: pve-1, a small one with a single NUMA node and 32 GiB,
// and pve-2, a large one with four NUMA nodes.
func Hosts(t testing.TB) []topology.Host {
	t.Helper()
	return []topology.Host{
		Host(t, "pve-1", "nuc-i7-1165g7-4c8t", 9001),
		Host(t, "pve-2", "xeon-6230-2s-snc2", 9002),
	}
}

// Host returns a host of Region with a machine of topology/machines and the template with
// that VMID.
func Host(t testing.TB, name topology.HostName, machine string, template int) topology.Host {
	t.Helper()
	loaded, err := machines.Load(machine)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.MemoryMiB == 0 { // the machine's memory is unknown
		loaded.MemoryMiB = 32 << 10
		loaded.NUMANodes[0].MemoryMiB = loaded.MemoryMiB
	}
	return topology.Host{
		Region: Region, Name: name, Online: true, Machine: loaded,
		Templates: []topology.Template{{
			VMID: template, Name: Template, DiskInterface: "scsi0", DiskGiB: 8, Storage: "local-lvm",
			Options: map[string]string{
				"agent": "1", "boot": "order=scsi0", "cpu": "host", "ostype": "l26",
				"scsihw": "virtio-scsi-single", "serial0": "socket", "vga": "serial0",
			},
		}},
	}
}

// Proxmox starts a simulated Proxmox that is stopped at the end of the test. It has the
// hosts of Hosts unless change sets others.
func Proxmox(t testing.TB, change ...func(*pvesim.Config)) *pvesim.Server {
	t.Helper()
	cfg := pvesim.Config{Hosts: Hosts(t)}
	for _, change := range change {
		change(&cfg)
	}
	server, err := pvesim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// Client returns a client of the simulated Proxmox that uses its default token.
func Client(t testing.TB, server *pvesim.Server) *proxmox.Client {
	t.Helper()
	return client(t, server, proxmox.Config{TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret})
}

// RootClient returns a client that logs in as root@pam with the default password.
func RootClient(t testing.TB, server *pvesim.Server) *proxmox.Client {
	t.Helper()
	return client(t, server, proxmox.Config{Username: "root@pam", Password: pvesim.DefaultRootPassword})
}

func client(t testing.TB, server *pvesim.Server, cfg proxmox.Config) *proxmox.Client {
	t.Helper()
	cfg.Region, cfg.URL, cfg.CA = Region, server.URL(), server.CertPEM()
	c, err := proxmox.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// CertFile writes the certificate of the simulated Proxmox to a file, for ca_file and for
// the provider's SSL_CERT_FILE, and returns the file's path.
func CertFile(t testing.TB, server *pvesim.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pve-root-ca.pem")
	if err := os.WriteFile(path, server.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
