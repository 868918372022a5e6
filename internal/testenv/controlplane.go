package testenv

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/numaform/numaform/internal/enginetest"
)

// clusterToken logs in as a cluster administrator.
const clusterToken = "administrator-of-a-test"

// startTimeout is how long a server may take until it answers, on a busy machine.
const startTimeout = 90 * time.Second

// Cluster is a Kubernetes control plane: an API server and etcd, without
// schedulers, controllers and nodes.
type Cluster struct {
	// Config logs in as an administrator.
	Config *rest.Config
	// Kubeconfig is a file that does the same.
	Kubeconfig string

	dir       string
	etcd, api *server
	apiArgs   []string
}

// ControlPlane starts a control plane that ends with the test.
func ControlPlane(t testing.TB) *Cluster {
	t.Helper()
	c, err := StartControlPlane(toolsDir(t))
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

// toolsDir is where make builds the servers.
func toolsDir(t testing.TB) string {
	t.Helper()
	return filepath.Join(enginetest.ModuleRoot(t), ".tools", "bin")
}

// StartControlPlane starts a control plane from the binaries in tools, for the
// tests of a whole package. Close it.
func StartControlPlane(tools string) (*Cluster, error) {
	tools, err := filepath.Abs(tools)
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	dir, err := os.MkdirTemp("", "numaform-kube-")
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	c := &Cluster{dir: dir}
	if err := c.start(tools); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a control plane: %w", err), c.Close())
	}
	return c, nil
}

func (c *Cluster) start(tools string) error {
	ports, err := freePorts(3)
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
		"--etcd-servers=" + client, "--bind-address=" + host, "--secure-port=" + port, "--advertise-address=" + host,
		"--tls-cert-file=" + c.file("tls.crt"), "--tls-private-key-file=" + c.file("tls.key"), "--cert-dir=" + c.dir,
		"--token-auth-file=" + c.file("tokens.csv"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://numaform.invalid", "--service-account-key-file=" + c.file("tls.key"),
		"--service-account-signing-key-file=" + c.file("tls.key"), "--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true",
	}
	return c.startAPI(filepath.Join(tools, "kube-apiserver"))
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

// writeFiles writes the API server's certificate, its tokens and a kubeconfig.
func (c *Cluster) writeFiles(address string) error {
	certificate, key, err := localhostCertificate()
	if err != nil {
		return err
	}
	c.Config = &rest.Config{
		Host: "https://" + address, BearerToken: clusterToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: certificate}, QPS: 1000, Burst: 2000,
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: c.Config.Host, CertificateAuthorityData: certificate}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": {Token: clusterToken}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	})
	if err != nil {
		return err
	}
	c.Kubeconfig = c.file("kubeconfig")
	for name, content := range map[string][]byte{
		"tls.crt": certificate, "tls.key": key, "kubeconfig": kubeconfig,
		"tokens.csv": []byte(clusterToken + ",admin,admin,system:masters\n"),
	} {
		if err := os.WriteFile(c.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Restart ends the API server and starts it again with the same data and address.
func (c *Cluster) Restart() error {
	if err := c.Stop(); err != nil {
		return err
	}
	return c.Resume()
}

// Stop ends the API server and keeps its data: it cannot be reached until Resume.
func (c *Cluster) Stop() error { return c.api.stop() }

// Resume starts an API server that was stopped.
func (c *Cluster) Resume() error { return c.startAPI(c.api.path) }

// Close ends the control plane and removes its data.
func (c *Cluster) Close() error {
	return errors.Join(c.api.stop(), c.etcd.stop(), os.RemoveAll(c.dir))
}

// localhostCertificate returns a certificate for 127.0.0.1 that is its own
// authority, and its key, in PEM.
func localhostCertificate() (certificate, key []byte, err error) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	pair := s.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// healthy asks whether a server answers 200.
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
			return fmt.Errorf("%s answers %s", url, response.Status)
		}
		return nil
	}
}
