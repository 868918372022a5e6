package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// signer signs release files with a cosign key, and the apt repository with an OpenPGP key.
// Signatures are deterministic, so a signed release is as reproducible as its files.
type signer struct {
	key *ecdsa.PrivateKey
	// public is the public key as PEM.
	public []byte
	// apt signs the apt repository; nil leaves it unsigned.
	apt *openpgp.Entity
}

// signerFromEnvironment returns a signer with the keys in COSIGN_PRIVATE_KEY (encrypted
// with COSIGN_PASSWORD; cosign reads the same variables with env://COSIGN_PRIVATE_KEY) and
// APT_SIGNING_KEY. It returns nil if neither is set. APT_SIGNING_KEY without
// COSIGN_PRIVATE_KEY is an error; without APT_SIGNING_KEY, the apt repository is not
// signed.
func signerFromEnvironment(env func(string) string) (*signer, error) {
	text := env("COSIGN_PRIVATE_KEY")
	if text == "" {
		if env("APT_SIGNING_KEY") != "" {
			return nil, errors.New("APT_SIGNING_KEY is set, but COSIGN_PRIVATE_KEY is not: set both, or neither")
		}
		return nil, nil
	}
	key, err := cosignKey([]byte(text), []byte(env("COSIGN_PASSWORD")))
	if err != nil {
		return nil, fmt.Errorf("reading COSIGN_PRIVATE_KEY: %w: set it to the content of cosign.key, as written by `cosign generate-key-pair`", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("reading COSIGN_PRIVATE_KEY: %w", err)
	}
	s := &signer{key: key, public: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}
	if text := env("APT_SIGNING_KEY"); text != "" {
		keys, err := openpgp.ReadArmoredKeyRing(strings.NewReader(text))
		if err == nil && (len(keys) != 1 || keys[0].PrivateKey == nil || keys[0].PrivateKey.Encrypted) {
			err = errors.New("expected one private key without a passphrase")
		}
		if err != nil {
			return nil, fmt.Errorf("reading APT_SIGNING_KEY: %w: set it to the output of `gpg --armor --export-secret-keys`", err)
		}
		s.apt = keys[0]
	}
	return s, nil
}

// cosignKey decrypts a cosign private key.
func cosignKey(text, password []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "ENCRYPTED SIGSTORE PRIVATE KEY" && block.Type != "ENCRYPTED COSIGN PRIVATE KEY" {
		return nil, errors.New("expected an encrypted cosign private key")
	}
	der, err := encrypted.Decrypt(block.Bytes, password)
	if err != nil {
		return nil, fmt.Errorf("decrypting the key with COSIGN_PASSWORD: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key is a %T, want ECDSA", parsed)
	}
	return key, nil
}

// sign returns the signature of a text.
func (s *signer) sign(text []byte) ([]byte, error) {
	sum := sha256.Sum256(text)
	return s.key.Sign(nil, sum[:], crypto.SHA256) // without randomness: RFC 6979
}

// blob returns the signature of a text in base64, as cosign verify-blob reads it.
func (s *signer) blob(text []byte) ([]byte, error) {
	signature, err := s.sign(text)
	return []byte(base64.StdEncoding.EncodeToString(signature)), err
}

// Sign implements dsse.Signer.
func (s *signer) Sign(_ context.Context, text []byte) ([]byte, error) { return s.sign(text) }

// KeyID implements dsse.Signer. Cosign keys have no ID.
func (s *signer) KeyID() (string, error) { return "", nil }

// envelope returns an envelope that contains a statement and its signature.
func (s *signer) envelope(statement []byte) (*dsse.Envelope, error) {
	signer, err := dsse.NewEnvelopeSigner(s)
	if err != nil {
		return nil, err
	}
	return signer.SignPayload(context.Background(), "application/vnd.in-toto+json", statement)
}

// inRelease returns the Release file of an apt repository with an inline signature made at
// a given time.
func (s *signer) inRelease(release []byte, at time.Time) ([]byte, error) {
	random := false
	settings := &packet.Config{Time: func() time.Time { return at }, NonDeterministicSignaturesViaNotation: &random}
	key, ok := s.apt.SigningKey(at)
	if !ok {
		key, ok = s.apt.SigningKey(time.Time{})
	}
	if !ok {
		return nil, errors.New("APT_SIGNING_KEY contains no key that can sign")
	}
	var signed bytes.Buffer
	to, err := clearsign.Encode(&signed, key.PrivateKey, settings)
	if err != nil {
		return nil, err
	}
	if _, err := to.Write(release); err != nil {
		return nil, err
	}
	if err := to.Close(); err != nil {
		return nil, err
	}
	return append(signed.Bytes(), '\n'), nil
}
