package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/numaform/numaform/internal/enginetest"
)

// clusterToken is the token of a cluster administrator.
const clusterToken = "administrator-of-a-test"

// startTimeout limits how long a server may take to become ready, on a busy machine.
const startTimeout = 90 * time.Second

// Cluster is a Kubernetes control plane without nodes: an API server and etcd. A full
// control plane also has a scheduler and the controllers.
type Cluster struct {
	// Config is the client config of an administrator.
	Config *rest.Config
	// Kubeconfig is the path of a kubeconfig with the same credentials.
	Kubeconfig string
	// CA is the certificate of the cluster's authority in PEM.
	CA []byte

	dir  string
	full bool
	// audit is the file of the API server's audit log; empty means none.
	audit     string
	etcd, api *server
	apiArgs   []string
	// managers are the scheduler and the controller manager.
	managers []*server
}

// ControlPlane starts a control plane that is stopped at the end of the test.
func ControlPlane(t testing.TB) *Cluster {
	t.Helper()
	return ended(t, StartControlPlane)
}

// FullControlPlane starts a control plane that schedules pods and runs the controllers, and
// is stopped at the end of the test. See StartFullControlPlane.
func FullControlPlane(t testing.TB) *Cluster {
	t.Helper()
	return ended(t, StartFullControlPlane)
}

// AuditedControlPlane starts a control plane like FullControlPlane, whose API server writes
// each request, without its content, to an audit log: one JSON event per line.
func AuditedControlPlane(t testing.TB, auditLog string) *Cluster {
	t.Helper()
	return ended(t, func(tools string) (*Cluster, error) {
		return startCluster(tools, Cluster{full: true, audit: auditLog})
	})
}

// ended starts a cluster and stops it when the test ends.
func ended(t testing.TB, start func(tools string) (*Cluster, error)) *Cluster {
	t.Helper()
	c, err := start(toolsDir(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// toolsDir returns the directory in which make tools builds the servers. Under go test
// -short, it skips the test.
func toolsDir(t testing.TB) string {
	t.Helper()
	enginetest.Long(t, "a control plane")
	return filepath.Join(enginetest.ModuleRoot(t), ".tools", "bin")
}

// StartControlPlane starts a control plane from the binaries in tools, for the tests of a
// whole package. The caller must close it.
func StartControlPlane(tools string) (*Cluster, error) { return startCluster(tools, Cluster{}) }

// StartFullControlPlane starts a control plane like kubeadm's, from the binaries in tools,
// for the tests of a whole package: nodes join by bootstrap tokens and have only the
// permissions of nodes, pods have service accounts, and a scheduler and the controllers are
// running. The caller must close it.
//
// As with kubeadm, only the group of kubeadm's own tokens may request certificates, and
// only the requests of this group, and renewals by nodes, are approved automatically.
func StartFullControlPlane(tools string) (*Cluster, error) {
	return startCluster(tools, Cluster{full: true})
}

func startCluster(tools string, config Cluster) (*Cluster, error) {
	tools, err := filepath.Abs(tools)
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	dir, err := os.MkdirTemp("", "numaform-kube-")
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	c := &config
	c.dir = dir
	if err := c.start(tools); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a control plane: %w", err), c.Close())
	}
	return c, nil
}

func (c *Cluster) start(tools string) error {
	ports, err := FreePorts(3)
	if err != nil {
		return err
	}
	client, peer, secure := "http://"+ports[0], "http://"+ports[1], ports[2]
	c.etcd, err = startServer(filepath.Join(tools, "etcd"), c.dir, []string{
		"--data-dir=" + filepath.Join(c.dir, "etcd"), "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		"--unsafe-no-fsync", "--log-level=error",
	}, healthy(http.DefaultClient, client+"/health"))
	if err != nil {
		return err
	}
	if err := c.writeFiles(secure); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(secure)
	if err != nil {
		return err
	}
	c.apiArgs = []string{
		"--etcd-servers=" + client, "--bind-address=" + host, "--secure-port=" + port,
		"--tls-cert-file=" + c.file("tls.crt"), "--tls-private-key-file=" + c.file("tls.key"), "--cert-dir=" + c.dir,
		"--token-auth-file=" + c.file("tokens.csv"), "--service-cluster-ip-range=" + serviceCIDR,
		"--service-account-issuer=https://numaform.invalid", "--service-account-key-file=" + c.file("tls.key"),
		"--service-account-signing-key-file=" + c.file("tls.key"), "--allow-privileged=true",
	}
	c.apiArgs = append(c.apiArgs, c.accessArgs(host)...)
	if err := c.startAPI(filepath.Join(tools, "kube-apiserver")); err != nil || !c.full {
		return err
	}
	return c.startManagers(tools)
}

func (c *Cluster) startAPI(binary string) error {
	transport, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		return err
	}
	c.api, err = startServer(binary, c.dir, c.apiArgs, healthy(transport, c.Config.Host+"/readyz"))
	return err
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// writeFiles writes the files that the servers read: certificates and keys, tokens, the
// audit policy and kubeconfigs. It sets the exported fields of the cluster.
func (c *Cluster) writeFiles(address string) error {
	authority, err := newAuthority()
	if err != nil {
		return err
	}
	files, err := authority.files()
	if err != nil {
		return err
	}
	c.CA, c.Kubeconfig = files["ca.crt"], c.file("kubeconfig")
	c.Config = &rest.Config{
		Host: "https://" + address, BearerToken: clusterToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CA}, QPS: 1000, Burst: 2000,
	}
	files["audit-policy.yaml"] = []byte(auditPolicy)
	files["tokens.csv"] = []byte(clusterToken + ",admin,admin,system:masters\n")
	for _, name := range managerNames() {
		files["tokens.csv"] = fmt.Appendf(files["tokens.csv"], "%s,system:%s,%s\n", clusterToken+name, name, name)
		if files[name+".kubeconfig"], err = c.kubeconfig(clusterToken + name); err != nil {
			return err
		}
	}
	if files["kubeconfig"], err = c.kubeconfig(clusterToken); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(c.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig returns a kubeconfig that uses a token.
func (c *Cluster) kubeconfig(token string) ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: c.Config.Host, CertificateAuthorityData: c.CA}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	})
}

// Restart restarts the API server with the same data and address.
func (c *Cluster) Restart() error {
	if err := c.Stop(); err != nil {
		return err
	}
	return c.Resume()
}

// Stop stops the API server, which is unreachable until Resume. Its data remains in etcd.
func (c *Cluster) Stop() error { return c.api.stop() }

// Resume starts a stopped API server.
func (c *Cluster) Resume() error { return c.startAPI(c.api.path) }

// Close stops the control plane and removes its data.
func (c *Cluster) Close() error {
	var errs []error
	for _, manager := range c.managers {
		errs = append(errs, manager.stop())
	}
	return errors.Join(append(errs, c.api.stop(), c.etcd.stop(), os.RemoveAll(c.dir))...)
}

// healthy returns a check that a server responds with 200.
func healthy(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close() //nolint:errcheck // nothing was read
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s returned %s", url, response.Status)
		}
		return nil
	}
}
