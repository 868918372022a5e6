package csr

import certificatesv1 "k8s.io/api/certificates/v1"

// Credential returns the ID of the token used for a request.
func Credential(account Account, request *certificatesv1.CertificateSigningRequest) (string, error) {
	return account.credential(request)
}
