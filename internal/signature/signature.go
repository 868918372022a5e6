// Package signature checks approvals that are SSH signatures, in the format of ssh-keygen
// -Y sign, against allowed signers in OpenSSH's format. It decides whether enough of the
// right people signed a change; it does not decide whether a change needs approval, and
// reads no private keys. Start at Statement and Policy.Check.
package signature

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Namespace is the namespace of approvals, for ssh-keygen -n. A signature in another
// namespace, such as that of a git commit or of a file, approves nothing.
const Namespace = "numaform-plan-v1"

// MaxLength is the maximum length of an armored signature in bytes. The signature of an RSA
// key of 16384 bits, the largest that ssh-keygen creates, is about half as long.
const MaxLength = 12 << 10

// The parts of OpenSSH's format: PROTOCOL.sshsig in openssh-portable.
const (
	preamble   = "SSHSIG"
	version    = 1
	armorType  = "SSH SIGNATURE"
	armorBegin = "-----BEGIN " + armorType + "-----"
)

// minRSABits is the minimum size of an RSA key, which is also that of ssh-keygen's -t rsa
// for new keys since OpenSSH 7.6 doubled.
const minRSABits = 2048

// envelope is a signature without its armor and preamble.
type envelope struct {
	Version   uint32
	PublicKey string
	Namespace string
	Reserved  string
	Hash      string
	Signature string
}

// signed is what a key signs, without its preamble.
type signed struct {
	Namespace string
	Reserved  string
	Hash      string
	Digest    []byte
}

// userPresent is the flag of a security key that was touched: PROTOCOL.u2f in
// openssh-portable. The flags are the first byte after the signature.
const userPresent = 1

// isHardware reports whether a key is on a FIDO security key.
func isHardware(key ssh.PublicKey) bool {
	return key.Type() == ssh.KeyAlgoSKED25519 || key.Type() == ssh.KeyAlgoSKECDSA256
}

// ErrOtherText means that the signature's key signed another text.
var ErrOtherText = errors.New("it is a signature of another text")

// Verify returns the key that made an armored signature of the text, in this package's
// namespace. Whether the key's owner may approve anything is a separate question: see
// Policy.Check.
func Verify(text []byte, armored string) (ssh.PublicKey, error) { //nolint:gocyclo // each field of the format is checked
	if len(armored) > MaxLength {
		return nil, fmt.Errorf("it has %d bytes: a signature by ssh-keygen -Y sign has at most %d", len(armored), MaxLength)
	}
	armored = strings.ReplaceAll(armored, "\r\n", "\n")
	block, rest := pem.Decode([]byte(armored))
	if block == nil || !strings.HasPrefix(armored, armorBegin+"\n") || block.Type != armorType || len(block.Headers) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("it is not an SSH signature: it must begin with %s and contain nothing else: sign with ssh-keygen -Y sign -n %s", armorBegin, Namespace)
	}
	content, ok := bytes.CutPrefix(block.Bytes, []byte(preamble))
	var e envelope
	if !ok || ssh.Unmarshal(content, &e) != nil {
		return nil, errors.New("it is not an SSH signature: its content is damaged: copy the whole file")
	}
	if e.Version != version {
		return nil, fmt.Errorf("its version is %d: only version %d is supported", e.Version, version)
	}
	if e.Namespace != Namespace {
		return nil, fmt.Errorf("its namespace is %q: an approval has the namespace %s: sign with ssh-keygen -Y sign -n %s", e.Namespace, Namespace, Namespace)
	}
	key, err := ssh.ParsePublicKey([]byte(e.PublicKey))
	if err != nil {
		return nil, fmt.Errorf("reading its public key: %w", err)
	}
	if err := checkKey(key); err != nil {
		return nil, err
	}
	digest, err := digestOf(e.Hash, text)
	if err != nil {
		return nil, err
	}
	var s ssh.Signature
	if err := ssh.Unmarshal([]byte(e.Signature), &s); err != nil {
		return nil, fmt.Errorf("reading the signature in it: %w", err)
	}
	// Package ssh also accepts SHA-1 for an RSA key, and PROTOCOL.sshsig does not.
	if key.Type() == ssh.KeyAlgoRSA && s.Format != ssh.KeyAlgoRSASHA256 && s.Format != ssh.KeyAlgoRSASHA512 {
		return nil, fmt.Errorf("its algorithm is %q: an RSA key must sign with %s or %s: sign with ssh-keygen -Y sign", s.Format, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
	}
	if isHardware(key) && len(s.Rest) > 0 && s.Rest[0]&userPresent == 0 {
		return nil, fmt.Errorf("security key %s made it without a touch: each approval requires one: sign with a key that was created without the option no-touch-required", ssh.FingerprintSHA256(key))
	}
	if err := key.Verify(toSign(e.Reserved, e.Hash, digest), &s); err != nil {
		return nil, fmt.Errorf("%w by key %s (%w)", ErrOtherText, ssh.FingerprintSHA256(key), err)
	}
	return key, nil
}

// checkKey returns an error if a key is of a kind that cannot approve.
func checkKey(key ssh.PublicKey) error {
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKECDSA256:
		return nil
	case ssh.KeyAlgoRSA:
		crypto, ok := key.(ssh.CryptoPublicKey)
		if !ok {
			break
		}
		if public, ok := crypto.CryptoPublicKey().(*rsa.PublicKey); ok && public.N.BitLen() < minRSABits {
			return fmt.Errorf("the RSA key has %d bits: use a key of at least %d bits, or an Ed25519 key", public.N.BitLen(), minRSABits)
		}
		return nil
	}
	return fmt.Errorf("keys of type %s cannot approve: use an Ed25519, ECDSA or RSA key", key.Type())
}

func digestOf(hash string, text []byte) ([]byte, error) {
	switch hash {
	case "sha256":
		sum := sha256.Sum256(text)
		return sum[:], nil
	case "sha512":
		sum := sha512.Sum512(text)
		return sum[:], nil
	}
	return nil, fmt.Errorf("its hash algorithm is %q: must be sha256 or sha512", hash)
}

func toSign(reserved, hash string, digest []byte) []byte {
	return append([]byte(preamble), ssh.Marshal(signed{Namespace: Namespace, Reserved: reserved, Hash: hash, Digest: digest})...)
}

// Sign returns the armored signature of a text, as ssh-keygen -Y sign makes it. signer can
// be a key or a key of an ssh-agent.
func Sign(signer ssh.Signer, text []byte) (string, error) {
	const hash = "sha512"
	digest, err := digestOf(hash, text)
	if err != nil {
		return "", err
	}
	algorithm := ""
	if signer.PublicKey().Type() == ssh.KeyAlgoRSA {
		algorithm = ssh.KeyAlgoRSASHA512
	}
	var s *ssh.Signature
	if with, ok := signer.(ssh.AlgorithmSigner); ok && algorithm != "" {
		s, err = with.SignWithAlgorithm(rand.Reader, toSign("", hash, digest), algorithm)
	} else {
		s, err = signer.Sign(rand.Reader, toSign("", hash, digest))
	}
	if err != nil {
		return "", fmt.Errorf("signing with key %s: %w", ssh.FingerprintSHA256(signer.PublicKey()), err)
	}
	content := ssh.Marshal(envelope{
		Version: version, PublicKey: string(signer.PublicKey().Marshal()), Namespace: Namespace, Hash: hash, Signature: string(ssh.Marshal(s)),
	})
	return string(pem.EncodeToMemory(&pem.Block{Type: armorType, Bytes: append([]byte(preamble), content...)})), nil
}
