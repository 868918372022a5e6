package signature_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/numaform/numaform/internal/signature"
)

// securityKey is a FIDO security key in software. Its public key and its signatures have the
// format of PROTOCOL.u2f in openssh-portable.
type securityKey struct {
	private     crypto.Signer
	application string
	// flags and counter are the authenticator's; signedFlags, if set, are the flags that it
	// signs instead.
	flags, signedFlags byte
	counter            uint32
	public             ssh.PublicKey
}

// The flags of an authenticator.
const (
	touched  = 1
	verified = 4 // by a PIN or a fingerprint
)

func newSecurityKey(t *testing.T, private crypto.Signer) *securityKey {
	t.Helper()
	k := &securityKey{private: private, application: "ssh:", flags: touched, counter: 41}
	var blob []byte
	switch public := private.Public().(type) {
	case ed25519.PublicKey:
		blob = ssh.Marshal(struct{ Type, Key, Application string }{ssh.KeyAlgoSKED25519, string(public), k.application})
	case *ecdsa.PublicKey:
		point, err := public.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		blob = ssh.Marshal(struct{ Type, Curve, Key, Application string }{ssh.KeyAlgoSKECDSA256, "nistp256", string(point), k.application})
	}
	var err error
	if k.public, err = ssh.ParsePublicKey(blob); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *securityKey) PublicKey() ssh.PublicKey { return k.public }

func (k *securityKey) Sign(random io.Reader, data []byte) (*ssh.Signature, error) {
	flags := k.flags
	if k.signedFlags != 0 {
		flags = k.signedFlags
	}
	application, message := sha256.Sum256([]byte(k.application)), sha256.Sum256(data)
	signed := append(application[:], ssh.Marshal(struct {
		Flags   byte
		Counter uint32
	}{flags, k.counter})...)
	signed = append(signed, message[:]...)
	made := &ssh.Signature{Format: k.public.Type(), Rest: ssh.Marshal(struct {
		Flags   byte
		Counter uint32
	}{k.flags, k.counter})}
	switch private := k.private.(type) {
	case ed25519.PrivateKey:
		made.Blob = ed25519.Sign(private, signed)
	case *ecdsa.PrivateKey:
		digest := sha256.Sum256(signed)
		r, s, err := ecdsa.Sign(random, private, digest[:])
		if err != nil {
			return nil, err
		}
		made.Blob = ssh.Marshal(struct{ R, S *big.Int }{r, s})
	}
	return made, nil
}

// TestHardwareKeys verifies signatures of security keys: only a touched key approves, and
// neither its flags, its counter nor its application can be changed afterwards. Where
// OpenSSH is installed, it accepts the same signatures.
func TestHardwareKeys(t *testing.T) {
	t.Parallel()
	_, onEdwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	onP256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	content := text(t, statement())
	for _, private := range []crypto.Signer{onEdwards, onP256} {
		key := newSecurityKey(t, private)
		name := key.public.Type()
		for _, flags := range []byte{touched, touched | verified} {
			key.flags = flags
			armored := sign(t, key, statement())
			got, err := signature.Verify(content, armored)
			if err != nil || !bytes.Equal(got.Marshal(), key.public.Marshal()) {
				t.Errorf("%s, flags %d: %v", name, flags, err)
			}
			verifyWithOpenSSH(t, key.public, content, armored)
		}
		for _, test := range []struct {
			name, want string
			change     func(k *securityKey)
		}{
			{"not touched", "without a touch", func(k *securityKey) { k.flags = 0 }},
			{"verified, but not touched", "without a touch", func(k *securityKey) { k.flags = verified }},
			{"flags changed to touched", "another text", func(k *securityKey) { k.signedFlags = verified }},
			{"made for another application", "another text", func(k *securityKey) { k.application = "webauthn:example.com" }},
		} {
			changed := newSecurityKey(t, private)
			test.change(changed)
			if _, err := signature.Verify(content, sign(t, changed, statement())); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s, %s: %v, want %q", name, test.name, err, test.want)
			}
		}

		// A policy treats the key as any other.
		policy := signature.Policy{
			Signers: parse(t, allowed("bob", "", key.public)), Require: []signature.Requirement{{Quorum: 1, Of: []string{"bob"}}},
		}
		s := statement()
		if _, err := policy.Check(&s, []string{sign(t, key, s)}, signature.Scope{}, "", now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		key.flags = 0
		if _, err := policy.Check(&s, []string{sign(t, key, s)}, signature.Scope{}, "", now); err == nil {
			t.Errorf("%s: a signature without a touch approves", name)
		}
	}
}

// verifyWithOpenSSH verifies a signature with ssh-keygen, where it is installed.
func verifyWithOpenSSH(t *testing.T, key ssh.PublicKey, content []byte, armored string) {
	t.Helper()
	program, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Log("ssh-keygen is not installed: the signature was not verified with it")
		return
	}
	dir := t.TempDir()
	signers, made := filepath.Join(dir, "allowed_signers"), filepath.Join(dir, "plan.sig")
	for path, text := range map[string]string{signers: allowed("bob", "", key), made: armored} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command(program, "-Y", "verify", "-n", signature.Namespace, "-I", "bob", "-f", signers, "-s", made)
	command.Stdin = bytes.NewReader(content)
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("ssh-keygen does not verify a signature of a key of type %s: %v\n%s", key.Type(), err, out)
	}
}
