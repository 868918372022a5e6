package seed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// rootCA is the ConfigMap in each namespace that contains the cluster's CA, and
	// rootCAKey its key.
	rootCA, rootCAKey = "kube-root-ca.crt", "ca.crt"
	// dnsService is the name of the cluster's DNS Service, whatever implements it.
	dnsService = "kube-dns"
	// podToken is the path of the token of a Pod's service account.
	podToken = "/var/run/secrets/kubernetes.io/serviceaccount/token" //nolint:gosec // a path
)

// facts are the properties of the cluster that a node needs to join it.
type facts struct {
	apiServer, ca, version string
	dns                    []string
}

// facts returns the facts that the operator configured, and reads the others from the
// cluster.
func (s *Seeder) facts(ctx context.Context) (facts, error) {
	join := s.config.Cluster.Join
	known := facts{apiServer: join.APIServer, ca: string(join.CA), dns: join.ClusterDNS}
	if known.apiServer == "" || known.ca == "" {
		server, ca, err := s.address(ctx)
		if err != nil {
			return facts{}, fmt.Errorf("finding the API server's URL and CA certificate: %w", err)
		}
		known.apiServer, known.ca = cmp.Or(known.apiServer, server), cmp.Or(known.ca, ca)
	}
	var err error
	if known.version, err = s.config.Cluster.Version(); err != nil {
		return facts{}, fmt.Errorf("reading the API server's version: %w", err)
	}
	if len(known.dns) == 0 {
		if known.dns, err = s.dns(ctx); err != nil {
			return facts{}, fmt.Errorf("finding the addresses of the cluster's DNS: %w", err)
		}
	}
	return known, nil
}

// factsAge is the maximum age of facts for the check of a class.
const factsAge = 5 * time.Minute

// recentFacts returns possibly cached facts for the checks of classes, which are repeated
// periodically. Seeds are always created from new facts. The API server is queried without
// holding mu, so that a slow response delays no other check; two concurrent checks may both
// query it.
func (s *Seeder) recentFacts(ctx context.Context) (facts, error) {
	s.mu.Lock()
	known, recent := s.known, !s.knownAt.IsZero() && s.config.Clock.Since(s.knownAt) < factsAge
	s.mu.Unlock()
	if recent {
		return known, nil
	}

	known, err := s.facts(ctx)
	if err != nil {
		return facts{}, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = known
	s.knownAt = s.config.Clock.Now()
	return known, nil
}

// address returns the URL and the CA of the API server for nodes, as kubeadm published them
// in the cluster, or else as numaform itself uses them.
func (s *Seeder) address(ctx context.Context) (server, ca string, err error) {
	published := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: metav1.NamespacePublic, Name: bootstrapapi.ConfigMapClusterInfo}
	err = s.config.Cluster.Live.Get(ctx, key, published)
	if apierrors.IsNotFound(err) {
		return s.ownAddress(ctx)
	}
	if err != nil {
		return "", "", err
	}
	config, err := clientcmd.Load([]byte(published.Data[bootstrapapi.KubeConfigKey]))
	if err != nil {
		return "", "", fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	for _, cluster := range config.Clusters {
		if len(config.Clusters) == 1 && cluster.Server != "" && len(cluster.CertificateAuthorityData) > 0 {
			return cluster.Server, string(cluster.CertificateAuthorityData), nil
		}
	}
	return "", "", fmt.Errorf("ConfigMap %s must contain exactly one cluster, with server and certificate-authority-data: "+
		"correct it, or set join.api_server and join.ca_file in numaform.yaml", key)
}

// ownAddress returns the URL and the CA that numaform itself uses; the URL is empty if
// join.api_server is set. Without that key, it fails in a Pod, where the URL is a Service
// address, which nodes cannot reach before they have joined.
func (s *Seeder) ownAddress(ctx context.Context) (server, ca string, err error) {
	config := s.config.Cluster.REST
	if s.config.Cluster.Join.APIServer == "" {
		address, err := url.Parse(config.Host)
		if err != nil || config.BearerTokenFile == podToken || address.Scheme != "https" {
			return "", "", errors.New("the cluster has no ConfigMap kube-public/cluster-info: " +
				"set join.api_server in numaform.yaml to the URL at which nodes reach the API server")
		}
		server = address.Scheme + "://" + address.Host
	}

	if len(config.CAData) > 0 {
		return server, string(config.CAData), nil
	}
	if config.CAFile != "" {
		pem, err := os.ReadFile(config.CAFile)
		return server, string(pem), err
	}
	published := &corev1.ConfigMap{}
	err = s.config.Cluster.Live.Get(ctx, client.ObjectKey{Namespace: s.config.Cluster.Namespace, Name: rootCA}, published)
	if err != nil {
		return "", "", fmt.Errorf("%w: set join.ca_file in numaform.yaml to a file with the CA certificate", err)
	}
	if published.Data[rootCAKey] == "" {
		return "", "", fmt.Errorf("ConfigMap %s/%s has no %s: set join.ca_file in numaform.yaml to a file with the CA certificate",
			published.Namespace, published.Name, rootCAKey)
	}
	return server, published.Data[rootCAKey], nil
}

// dns returns the addresses of the cluster's DNS, or none if there is no Service with the
// usual name.
func (s *Seeder) dns(ctx context.Context) ([]string, error) {
	service := &corev1.Service{}
	err := s.config.Cluster.Live.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: dnsService}, service)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if ip := service.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		return []string{ip}, nil
	}
	return nil, nil
}
