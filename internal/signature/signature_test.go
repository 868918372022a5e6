package signature_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/numaform/numaform/internal/signature"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// statement is the approval of all tests.
func statement() signature.Statement {
	return signature.Statement{
		ClusterID: "prod", Hash: strings.Repeat("0f3b", 16), Subject: signature.ForScalePlan("workers-up-0f3b0f3b0f3b", "7d1f0c36-0000-4000-8000-000000000001"),
	}
}

func text(t *testing.T, s signature.Statement) []byte {
	t.Helper()
	content, err := s.Text()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func newKey(t *testing.T, private crypto.Signer) ssh.Signer {
	t.Helper()
	signer, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func ed25519Key(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return newKey(t, private)
}

func rsaKey(t *testing.T, bits int) ssh.Signer {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return newKey(t, private)
}

func sign(t *testing.T, signer ssh.Signer, s signature.Statement) string {
	t.Helper()
	armored, err := signature.Sign(signer, text(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return armored
}

// handmade is a signature with parts that Sign never makes.
type handmade struct {
	namespace, hash, algorithm string
	version                    uint32
	trailing                   string
}

func (h handmade) sign(t *testing.T, signer ssh.Signer, content []byte) string {
	t.Helper()
	sum := sha256.Sum256(content)
	toSign := append([]byte("SSHSIG"), ssh.Marshal(struct {
		Namespace, Reserved, Hash string
		Digest                    []byte
	}{h.namespace, "", h.hash, sum[:]})...)
	made, err := signer.(ssh.AlgorithmSigner).SignWithAlgorithm(rand.Reader, toSign, h.algorithm)
	if err != nil {
		t.Fatal(err)
	}
	blob := append([]byte("SSHSIG"), ssh.Marshal(struct {
		Version                                uint32
		Key, Namespace, Reserved, Hash, Signed string
	}{h.version, string(signer.PublicKey().Marshal()), h.namespace, "", h.hash, string(ssh.Marshal(made))})...)
	return string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: append(blob, h.trailing...)}))
}

func TestVerify(t *testing.T) {
	t.Parallel()
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, signer := range map[string]ssh.Signer{"ed25519": ed25519Key(t), "ecdsa": newKey(t, p256), "rsa": rsaKey(t, 2048)} {
		armored := sign(t, signer, statement())
		for _, given := range []string{armored, armored + "\n", strings.ReplaceAll(armored, "\n", "\r\n")} {
			key, err := signature.Verify(text(t, statement()), given)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if !bytes.Equal(key.Marshal(), signer.PublicKey().Marshal()) {
				t.Errorf("%s: the key is %s", name, ssh.FingerprintSHA256(key))
			}
		}
	}
}

// TestVerifyRefuses attacks the format.
func TestVerifyRefuses(t *testing.T) {
	signer, content := ed25519Key(t), text(t, statement())
	armored := sign(t, signer, statement())
	block, _ := pem.Decode([]byte(armored))
	flipped := bytes.Clone(block.Bytes)
	flipped[len(flipped)-1] ^= 1
	weak := newKey(t, weakRSA(t))
	other := statement()
	other.Subject = signature.ForScalePlan("workers-up-0f3b0f3b0f3b", "7d1f0c36-0000-4000-8000-000000000002")
	for _, test := range []struct{ name, armored, want string }{
		{"nothing", "", "not an SSH signature"},
		{"another kind of PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not an SSH signature"},
		{"text before", "approved!\n" + armored, "not an SSH signature"},
		{"text after", armored + "and more", "not an SSH signature"},
		{"two signatures", armored + armored, "not an SSH signature"},
		{"a header", strings.Replace(armored, "-----\n", "-----\nBy: alice\n\n", 1), "not an SSH signature"},
		{"truncated", armored[:len(armored)/2], "not an SSH signature"},
		{"huge", armored + strings.Repeat("\n", signature.MaxLength), "at most"},
		{"no content", string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: []byte("SSHSIG")})), "damaged"},
		{"a flipped bit", string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: flipped})), "another text"},
		{"of a git commit", handmade{"git", "sha256", ssh.KeyAlgoED25519, 1, ""}.sign(t, signer, content), `namespace is "git"`},
		{"of a file", handmade{"file", "sha256", ssh.KeyAlgoED25519, 1, ""}.sign(t, signer, content), `namespace is "file"`},
		{"trailing bytes", handmade{signature.Namespace, "sha256", ssh.KeyAlgoED25519, 1, "x"}.sign(t, signer, content), "damaged"},
		{"a later version", handmade{signature.Namespace, "sha256", ssh.KeyAlgoED25519, 2, ""}.sign(t, signer, content), "version"},
		{"hash md5", handmade{signature.Namespace, "md5", ssh.KeyAlgoED25519, 1, ""}.sign(t, signer, content), "hash algorithm"},
		{"RSA with SHA-1", handmade{signature.Namespace, "sha256", ssh.KeyAlgoRSA, 1, ""}.sign(t, rsaKey(t, 2048), content), `algorithm is "ssh-rsa"`},
		{"a short RSA key", handmade{signature.Namespace, "sha256", ssh.KeyAlgoRSASHA256, 1, ""}.sign(t, weak, content), "1024 bits"},
		{"another plan", sign(t, signer, other), "another text"},
	} {
		if key, err := signature.Verify(content, test.armored); err == nil || key != nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got key %v and error %v, want an error with %q", test.name, key, err, test.want)
		}
	}
	// The same by hand, but right: the refusals above are about their own part.
	if _, err := signature.Verify(content, handmade{signature.Namespace, "sha256", ssh.KeyAlgoED25519, 1, ""}.sign(t, signer, content)); err != nil {
		t.Error(err)
	}
	if _, err := signature.Verify(content, sign(t, signer, other)); !errors.Is(err, signature.ErrOtherText) {
		t.Errorf("another plan: %v", err)
	}
}

// weakRSA returns a key of 1024 bits, which package rsa no longer generates.
func weakRSA(t *testing.T) crypto.Signer {
	t.Helper()
	t.Setenv("GODEBUG", "rsa1024min=0")
	private, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	return private
}

func TestStatement(t *testing.T) {
	t.Parallel()
	glass := statement()
	glass.BreakGlass, glass.Until = "the forge is down\nhash: forged", now.Add(time.Hour)
	for _, s := range []signature.Statement{statement(), glass} {
		content := text(t, s)
		again, err := signature.ParseStatement(string(content))
		if err != nil || again != s {
			t.Errorf("%q is read as %+v, %v", content, again, err)
		}
		for _, changed := range []string{string(content) + "\n", "x" + string(content), strings.Replace(string(content), "cluster: ", "cluster:  ", 1), ""} {
			if got, err := signature.ParseStatement(changed); err == nil {
				t.Errorf("%q is read as %+v", changed, got)
			}
		}
	}
	if want := "numaform plan approval 1\ncluster: \"prod\"\nhash: " + strings.Repeat("0f3b", 16) +
		"\nsubject: \"scaleplan workers-up-0f3b0f3b0f3b 7d1f0c36-0000-4000-8000-000000000001\"\n"; string(text(t, statement())) != want {
		t.Errorf("the text is %q: signatures of earlier versions no longer match", text(t, statement()))
	}
	for _, hash := range []string{"", "0f3b", strings.Repeat("0f3b", 16)[:63], strings.Repeat("0F3B", 16), strings.Repeat("0f3b", 17)} {
		s := statement()
		s.Hash = hash
		if _, err := s.Text(); err == nil {
			t.Errorf("hash %q can be signed", hash)
		}
	}
}

// allowed returns a line of allowed signers.
func allowed(principals, options string, key ssh.PublicKey) string {
	return strings.TrimSpace(principals+" "+options) + " " + string(ssh.MarshalAuthorizedKey(key))
}

func parse(t *testing.T, lines ...string) *signature.Signers {
	t.Helper()
	signers, err := signature.ParseSigners("allowed_signers", []byte(strings.Join(lines, "")))
	if err != nil {
		t.Fatal(err)
	}
	return signers
}

// TestCheck checks who may approve.
func TestCheck(t *testing.T) {
	t.Parallel()
	alice, alice2, bob, carol, mallory := ed25519Key(t), ed25519Key(t), ed25519Key(t), ed25519Key(t), ed25519Key(t)
	old, next, git, both := ed25519Key(t), ed25519Key(t), ed25519Key(t), ed25519Key(t)
	policy := signature.Policy{
		Signers: parse(
			t, "# the team\n\n",
			allowed("alice@example.com,alice@laptop", "", alice.PublicKey()),
			allowed("alice@example.com", `namespaces="git,numaform-*"`, alice2.PublicKey()),
			allowed("bob@example.com", `valid-after="20260101Z",valid-before="20270101Z"`, bob.PublicKey()),
			allowed("carol@example.com", "", carol.PublicKey()),
			allowed("bob@example.com", `valid-before="20261121115959Z"`, old.PublicKey()),
			allowed("bob@example.com", `valid-after="20261121120001Z"`, next.PublicKey()),
			allowed("bob@example.com", `namespaces="git"`, git.PublicKey()),
			allowed("*@example.com,!carol@example.com", "", both.PublicKey()),
		),
		Require: []signature.Requirement{
			{NodePools: []string{"prod"}, Quorum: 2, Of: []string{"alice@example.com", "bob@example.com"}},
			{NodePools: []string{"web"}, Quorum: 1, Of: []string{"alice@example.com", "bob@example.com"}},
			{Rules: []string{"limit"}, Quorum: 1, Of: []string{"carol@example.com"}},
		},
		BreakGlass: []string{"carol@example.com"},
	}
	prod, web, lab := signature.Scope{NodePools: []string{"prod"}}, signature.Scope{NodePools: []string{"web"}}, signature.Scope{NodePools: []string{"lab"}}
	limit := signature.Scope{NodePools: []string{"lab"}, Rules: []string{"limit"}}
	mixed := signature.Scope{NodePools: []string{"lab", "prod"}, Rules: []string{"limit"}}
	otherCluster, otherHash, otherPlan := statement(), statement(), statement()
	otherCluster.ClusterID = "staging"
	otherHash.Hash = strings.Repeat("0f3c", 16)
	otherPlan.Subject = signature.ForScalePlan("workers-up-0f3b0f3b0f3b", "another")
	by := func(signers ...ssh.Signer) (list []string) {
		for _, signer := range signers {
			list = append(list, sign(t, signer, statement()))
		}
		return list
	}
	for _, test := range []struct {
		name       string
		scope      signature.Scope
		signatures []string
		author     string
		want       string // in the error; empty means approved
	}{
		{name: "not required", scope: lab},
		{name: "not required, but unknown", scope: lab, signatures: by(mallory)},
		{name: "two people", scope: prod, signatures: by(alice, bob)},
		{name: "two people, other order", scope: prod, signatures: by(bob, alice2)},
		{name: "two people and an unknown key", scope: prod, signatures: by(mallory, alice, bob)},
		{name: "no signature", scope: prod, want: "0 of 2 signatures: signatures of these people are missing: alice@example.com, bob@example.com"},
		{name: "one of two", scope: prod, signatures: by(alice), want: "1 of 2 signatures (alice@example.com): signatures of these people are missing: bob@example.com"},
		{name: "one signature twice", scope: prod, signatures: by(alice, alice), want: "1 of 2"},
		{name: "two keys of one person", scope: prod, signatures: by(alice, alice2), want: "1 of 2"},
		{name: "one key of two people", scope: prod, signatures: by(both), want: "1 of 2"},
		{name: "a shared key and one of the people", scope: prod, signatures: by(both, alice)},
		{name: "a person outside the quorum", scope: prod, signatures: by(alice, carol), want: "1 of 2"},
		{name: "an unknown key", scope: prod, signatures: by(alice, mallory), want: "is not an allowed signer"},
		{name: "an expired key", scope: prod, signatures: by(alice, old), want: "expired at 2026-11-21T11:59:59Z"},
		{name: "a key of tomorrow", scope: prod, signatures: by(alice, next), want: "is valid only after 2026-11-21T12:00:01Z"},
		{name: "a key for git only", scope: prod, signatures: by(alice, git), want: "is not an allowed signer"},
		{name: "another cluster", scope: prod, signatures: []string{sign(t, bob, otherCluster), by(alice)[0]}, want: "another text"},
		{name: "another hash", scope: prod, signatures: []string{sign(t, bob, otherHash), by(alice)[0]}, want: "another text"},
		{name: "another plan", scope: prod, signatures: []string{sign(t, bob, otherPlan), by(alice)[0]}, want: "another text"},
		{name: "author alone", scope: web, author: "alice@laptop", signatures: by(alice), want: "alice@laptop requested the change"},
		{name: "author alone with two keys", scope: web, author: "alice@example.com", signatures: by(alice, alice2), want: "requested the change"},
		{name: "author and another", scope: prod, author: "alice@laptop", signatures: by(alice, bob)},
		{name: "another than the author", scope: web, author: "alice@laptop", signatures: by(bob)},
		{name: "no author", scope: web, signatures: by(alice)},
		{name: "a rule", scope: limit, signatures: by(alice, bob), want: "carol@example.com"},
		{name: "a rule, met", scope: limit, signatures: by(carol)},
		{name: "pool and rule", scope: mixed, signatures: by(alice, bob), want: "carol@example.com"},
		{name: "pool and rule, met", scope: mixed, signatures: by(alice, carol, bob)},
		{name: "too many", scope: prod, signatures: by(append(make([]ssh.Signer, 0), alice, bob, alice, bob, alice, bob, alice, bob, alice, bob, alice, bob, alice, bob, alice, bob, alice)...), want: "at most 16"},
	} {
		s := statement()
		_, err := policy.Check(&s, test.signatures, test.scope, test.author, now)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got error %v, want %q", test.name, err, test.want)
		}
	}

	// Break-glass.
	glass := statement()
	glass.BreakGlass, glass.Until = "the forge is down", now.Add(time.Hour)
	if _, err := policy.Check(&glass, []string{sign(t, carol, glass)}, prod, "", now); err != nil {
		t.Errorf("break-glass: %v", err)
	}
	for name, signatures := range map[string][]string{"unsigned": nil, "by another": {sign(t, alice, glass)}, "by an ordinary approval": by(carol)} {
		if _, err := policy.Check(&glass, signatures, prod, "", now); err == nil {
			t.Errorf("break-glass %s was accepted", name)
		}
	}
	if _, err := policy.Check(&glass, []string{sign(t, carol, glass)}, prod, "", now.Add(time.Hour)); err == nil {
		t.Error("an expired break-glass approval was accepted")
	}
	s := statement()
	if _, err := policy.Check(&s, []string{sign(t, carol, glass), sign(t, alice, statement())}, prod, "", now); err == nil {
		t.Error("a break-glass signature was accepted for an ordinary approval")
	}
}

func TestParseSignersRefuses(t *testing.T) {
	key := ed25519Key(t).PublicKey()
	for _, test := range []struct{ name, content, want string }{
		{"no key", "alice@example.com\n", "line 1: must be: principals"},
		{"an empty name", allowed("alice,,bob", "", key), "principals"},
		{"a damaged key", "\nalice@example.com ssh-ed25519 AAAA\n", "line 2: reading the key of alice@example.com"},
		{"a private key", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "line 1"},
		{"a certificate authority", allowed("*@example.com", "cert-authority", key), "cert-authority"},
		{"an unknown option", allowed("alice", "no-touch-required", key), `option "no-touch-required"`},
		{"a local time", allowed("alice", `valid-before="20270101"`, key), "add Z"},
		{"an invalid time", allowed("alice", `valid-after="tomorrow"`, key), "YYYYMMDDZ"},
		{"a short RSA key", allowed("alice", "", newKey(t, weakRSA(t)).PublicKey()), "1024 bits"},
		{"too large", strings.Repeat("# x\n", 1<<18+1), "at most"},
	} {
		if _, err := signature.ParseSigners("allowed_signers", []byte(test.content)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got error %v, want one with %q", test.name, err, test.want)
		}
	}
}

// TestOpenSSH checks signatures and allowed signers with OpenSSH's own program, where it
// is installed; the other tests do not need it.
func TestOpenSSH(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Log("ssh-keygen is not installed: compared nothing")
		return
	}
	dir := t.TempDir()
	run := func(stdin []byte, args ...string) error {
		command := exec.CommandContext(t.Context(), program, args...)
		command.Dir, command.Stdin = dir, bytes.NewReader(stdin)
		output, err := command.CombinedOutput()
		if err != nil {
			return fmt.Errorf("ssh-keygen %s: %w: %s", strings.Join(args, " "), err, output)
		}
		return nil
	}
	content := text(t, statement())
	if err := os.WriteFile(filepath.Join(dir, "plan.txt"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		for _, args := range [][]string{
			{"-q", "-t", kind, "-N", "", "-C", "alice@example.com", "-f", kind},
			{"-Y", "sign", "-n", signature.Namespace, "-f", kind, "plan.txt"},
		} {
			if err := run(nil, args...); err != nil {
				t.Fatal(err)
			}
		}
		public, _ := os.ReadFile(filepath.Join(dir, kind+".pub"))
		made, _ := os.ReadFile(filepath.Join(dir, "plan.txt.sig"))
		if err := os.Remove(filepath.Join(dir, "plan.txt.sig")); err != nil {
			t.Fatal(err)
		}
		policy := signature.Policy{Signers: parse(t, "alice@example.com "+string(public))}
		if signers, err := policy.Verify(content, []string{string(made)}, now); err != nil || len(signers) != 1 || signers[0].Name() != "alice@example.com" {
			t.Errorf("%s: signed by ssh-keygen: %v, %v", kind, signers, err)
		}
		private, _ := os.ReadFile(filepath.Join(dir, kind))
		signer, err := ssh.ParsePrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{"allowed": "alice@example.com " + string(public), "ours.sig": sign(t, signer, statement())} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := run(content, "-Y", "verify", "-n", signature.Namespace, "-f", "allowed", "-I", "alice@example.com", "-s", "ours.sig"); err != nil {
			t.Error(err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	f.Add("-----BEGIN SSH SIGNATURE-----\nU1NIU0lHAAAAAQ==\n-----END SSH SIGNATURE-----\n")
	f.Fuzz(func(t *testing.T, armored string) {
		if key, err := signature.Verify([]byte("text"), armored); err == nil {
			t.Errorf("key %s signed nothing of the kind", ssh.FingerprintSHA256(key))
		}
	})
}

func FuzzParseSigners(f *testing.F) {
	f.Add(`alice@example.com,"b c" namespaces="git" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKxoLBJBivUPNTUJUSslQTt2hDjozKvHarKeN8uYFqg`)
	f.Fuzz(func(_ *testing.T, content string) {
		_, _ = signature.ParseSigners("allowed_signers", []byte(content))
	})
}
