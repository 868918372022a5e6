package guestsim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
)

// identity is the certificate with which a kubelet authenticates as its node.
type identity struct {
	certificate tls.Certificate
}

// client returns a client of the cluster's API server with the credentials that who adds,
// and a function that closes its connections. It shares no connections with other clients,
// so that its connections end with the guest.
func (j *Join) client(who func(*http.Transport) http.RoundTripper) (*kubernetes.Clientset, func(), error) {
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(j.CA) {
		return nil, nil, errors.New("reading the cluster's CA: it contains no certificate")
	}
	connections := &http.Transport{
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities},
		ForceAttemptHTTP2: true,
	}
	client, err := kubernetes.NewForConfigAndClient(
		&rest.Config{Host: j.Server, QPS: -1},
		&http.Client{Transport: transport.NewUserAgentRoundTripper("kubelet/"+kubeletVersion, who(connections))},
	)
	return client, connections.CloseIdleConnections, err
}

// asToken authenticates with the bootstrap token.
func (j *Join) asToken(connections *http.Transport) http.RoundTripper {
	return transport.NewBearerAuthRoundTripper(j.Token, connections)
}

// asNode authenticates with the certificate.
func (i *identity) asNode(connections *http.Transport) http.RoundTripper {
	connections.TLSClientConfig.Certificates = []tls.Certificate{i.certificate}
	return connections
}

// Request is a request for a node's certificate.
type Request struct {
	// Name is the name of the CertificateSigningRequest.
	Name string

	made   *certificatesv1.CertificateSigningRequest
	key    *ecdsa.PrivateKey
	client *kubernetes.Clientset
	close  func()
}

// RequestCertificate requests the certificate of a node with any name, using the join's
// token. Kubelet requests the certificate of its own node, but anyone who has the seed can
// request another node's. The caller must close the request.
func (j *Join) RequestCertificate(ctx context.Context, node string) (*Request, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	r := &Request{key: key}
	if r.client, r.close, err = j.client(j.asToken); err != nil {
		return nil, err
	}
	subject := &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	pem, err := certutil.MakeCSR(key, subject, nil, nil)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(pem)
	r.made, err = r.client.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "node-csr-" + hex.EncodeToString(sum[:16])},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		r.close()
		return nil, fmt.Errorf("requesting the certificate of node %s: %w", node, err)
	}
	r.Name = r.made.Name
	return r, nil
}

// Close ends the request's connections.
func (r *Request) Close() { r.close() }

// ErrDenied means that a certificate will never be issued.
var ErrDenied = errors.New("denied")

// Wait waits until the certificate is issued and returns it with its key. The error wraps
// ErrDenied if the request was denied or failed.
func (r *Request) Wait(ctx context.Context) (tls.Certificate, error) {
	pem, err := csr.WaitForCertificate(ctx, r.client, r.Name, r.made.UID)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("waiting for certificate request %s: %w", r.Name, r.denied(ctx, err))
	}
	chain, err := certutil.ParseCertsPEM(pem)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("reading the certificate of request %s: %w", r.Name, err)
	}
	result := tls.Certificate{PrivateKey: r.key, Leaf: chain[0]}
	for _, certificate := range chain {
		result.Certificate = append(result.Certificate, certificate.Raw)
	}
	return result, nil
}

// denied returns ErrDenied with the reason if the request was denied or failed, and err
// otherwise.
func (r *Request) denied(ctx context.Context, err error) error {
	request, lost := r.client.CertificatesV1().CertificateSigningRequests().Get(ctx, r.Name, metav1.GetOptions{})
	if lost != nil {
		return err
	}
	for _, condition := range request.Status.Conditions {
		if condition.Type == certificatesv1.CertificateDenied || condition.Type == certificatesv1.CertificateFailed {
			return fmt.Errorf("%w: %s: %s", ErrDenied, condition.Reason, condition.Message)
		}
	}
	return err
}

// refused reports whether the API server refused a request. Other errors may be temporary.
func refused(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}
