package testenv

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority is the certificate authority of a cluster. As in a kubeadm cluster, it signs
// the certificates of the API server and of its clients.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	certificate, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "kubernetes"}, key)
	if err != nil {
		return nil, err
	}
	return &authority{certificate: certificate, key: key}, nil
}

// pem returns the authority's certificate.
func (a *authority) pem() ([]byte, error) { return certutil.EncodeCertificates(a.certificate) }

// GuestLoopback is the address of this machine's loopback interface in QEMU's network for
// guests.
const GuestLoopback = "10.0.2.2"

// The addresses of Services, and of the Service kubernetes, which is the first of them.
const (
	serviceCIDR       = "10.0.0.0/24"
	kubernetesService = "10.0.0.1"
)

// loopback returns a certificate for servers on 127.0.0.1 and its key, in PEM. It is also
// valid for GuestLoopback and for the Service kubernetes.
func (a *authority) loopback() (certificate, key []byte, err error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(GuestLoopback), net.ParseIP(kubernetesService)},
		NotBefore:   a.certificate.NotBefore, NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, signer.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	issued, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	if certificate, err = certutil.EncodeCertificates(issued); err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(signer)
	return certificate, key, err
}

// files returns the certificates and keys that the cluster's processes read.
func (a *authority) files() (map[string][]byte, error) {
	ca, err := a.pem()
	if err != nil {
		return nil, err
	}
	caKey, err := keyutil.MarshalPrivateKeyToPEM(a.key)
	if err != nil {
		return nil, err
	}
	certificate, key, err := a.loopback()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"ca.crt": ca, "ca.key": caKey, "tls.crt": certificate, "tls.key": key}, nil
}
