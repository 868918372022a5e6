package e2e_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/signature"
)

// person is a key, in a file as ssh-keygen writes it.
type person struct {
	signer ssh.Signer
	file   string
}

func newPerson(t *testing.T, dir, name string) person {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, name)
	if err != nil {
		t.Fatal(err)
	}
	p := person{file: filepath.Join(dir, name)}
	if p.signer, err = ssh.NewSignerFromKey(private); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// line returns a line of allowed signers.
func (p *person) line(principals string) string {
	return principals + " " + string(ssh.MarshalAuthorizedKey(p.signer.PublicKey()))
}

// sign signs the text in a file, and returns the flags of the signature.
func (p *person) sign(t *testing.T, statement string) []string {
	t.Helper()
	text, err := os.ReadFile(statement)
	if err != nil {
		t.Fatal(err)
	}
	made, err := signature.Sign(p.signer, text)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "plan.sig")
	if err := os.WriteFile(file, []byte(made), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--signature", file}
}

// TestApproveBySignature checks whose signatures approve a change of the command line: the
// right keys, a wrong, an expired and a second key, another hash, a replay, a quorum of two,
// the author alone, and a break-glass approval in a freeze window.
func TestApproveBySignature(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	alice, alice2, bob, carol := newPerson(t, stage.Dir, "alice"), newPerson(t, stage.Dir, "alice2"), newPerson(t, stage.Dir, "bob"), newPerson(t, stage.Dir, "carol")
	expired, mallory := newPerson(t, stage.Dir, "expired"), newPerson(t, stage.Dir, "mallory")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	signers := "# approvers\n" + alice.line("alice@example.com,"+me.Username+"@"+host) + alice2.line("alice@example.com") + bob.line("bob@example.com") +
		carol.line("carol@example.com") + expired.line(`bob@example.com valid-before="20260101Z"`)
	if err := os.WriteFile(filepath.Join(stage.Dir, "allowed_signers"), []byte(signers), 0o600); err != nil {
		t.Fatal(err)
	}
	edit(t, stage, "numaform.yaml", "fleet:\n", `policy: {limits: {per_change: {creates: 1}}}
approval:
  allowed_signers_file: allowed_signers
  require:
  - {rules: [limit], quorum: 2, of: [alice@example.com, bob@example.com]}
  break_glass: [carol@example.com]
  freeze: []
fleet:
`)

	// plan returns the digest of the next change, and the file with the text to sign.
	plan := func() (digest, statement string) {
		t.Helper()
		statement = filepath.Join(t.TempDir(), "plan.txt")
		var report struct{ Digest string }
		if err := json.Unmarshal([]byte(run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "-o", "json", "--statement", statement)), &report); err != nil {
			t.Fatal(err)
		}
		return report.Digest, statement
	}
	digest, statement := plan()
	forged := filepath.Join(t.TempDir(), "forged.txt")
	text, err := os.ReadFile(statement)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(forged, []byte(strings.Replace(string(text), digest, strings.Repeat("0", 64), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	apply := func(want int, signatures ...[]string) string {
		t.Helper()
		args := []string{"apply", "-f", stage.Manifests(), "--approve", digest}
		for _, flags := range signatures {
			args = append(args, flags...)
		}
		return run(t, stage, want, args...)
	}
	for _, test := range []struct {
		name       string
		signatures [][]string
	}{
		{"no signature", nil},
		{"one of two", [][]string{alice.sign(t, statement)}},
		{"two keys of one person", [][]string{alice.sign(t, statement), alice2.sign(t, statement)}},
		{"a wrong key", [][]string{alice.sign(t, statement), mallory.sign(t, statement)}},
		{"an expired key", [][]string{alice.sign(t, statement), expired.sign(t, statement)}},
		{"another hash", [][]string{alice.sign(t, statement), bob.sign(t, forged)}},
		{"a person outside the quorum", [][]string{alice.sign(t, statement), carol.sign(t, statement)}},
	} {
		apply(cli.ExitFailed, test.signatures...)
		if guests := running(stage); guests > 0 {
			t.Fatalf("%s approved the change: %d guests run", test.name, guests)
		}
	}
	both := [][]string{alice.sign(t, statement), bob.sign(t, statement)}
	apply(cli.ExitOK, both...)
	before := running(stage)
	if before == 0 {
		t.Fatal("two signatures did not approve the change")
	}
	entries := history(t, stage)
	last := &entries[len(entries)-1].Change
	if last.Approval == nil || len(last.Approval.Signatures) != 2 || last.Approval.Statement != string(text) {
		t.Fatalf("the history contains the approval %+v, want both signatures of\n%s", last.Approval, text)
	}
	shown := run(t, stage, cli.ExitOK, "history", last.ID)
	for _, name := range []string{"alice@example.com", "bob@example.com"} {
		if !strings.Contains(shown, name+" with key SHA256:") || strings.Count(shown, ": valid\n") != 2 {
			t.Errorf("numaform history %s lacks the valid signature of %s:\n%s", last.ID, name, shown)
		}
	}

	// A replay, the author alone, and a signature by OpenSSH.
	edit(t, stage, "manifests/pods.yaml", "replicas: 4", "replicas: 8")
	digest, statement = plan()
	apply(cli.ExitFailed, both...)
	edit(t, stage, "numaform.yaml", "quorum: 2", "quorum: 1")
	apply(cli.ExitFailed, alice.sign(t, statement))
	if got := running(stage); got != before {
		t.Fatalf("a replayed signature or the author alone approved the change: %d guests run, before %d", got, before)
	}

	// A freeze window.
	edit(t, stage, "numaform.yaml", "freeze: []", "freeze: [{name: release, start: 2026-01-01T00:00:00Z, end: 2199-01-01T00:00:00Z}]")
	apply(cli.ExitFailed, bob.sign(t, statement))
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	glass := []string{"--break-glass", "the approvers are asleep", "--break-glass-until", until}
	run(t, stage, cli.ExitOK, append([]string{"apply", "-f", stage.Manifests(), "--dry-run", "--statement", statement}, glass...)...)
	apply(cli.ExitFailed, glass)
	apply(cli.ExitFailed, glass, bob.sign(t, statement))
	if got := running(stage); got != before {
		t.Fatalf("a freeze window did not stop the change: %d guests run, before %d", got, before)
	}
	apply(cli.ExitOK, glass, carol.sign(t, statement))
	if got := running(stage); got <= before {
		t.Errorf("the break-glass approval did not begin the change: %d guests run, before %d", got, before)
	}
	entries = history(t, stage)
	last = &entries[len(entries)-1].Change
	if shown := run(t, stage, cli.ExitOK, "history", last.ID); !strings.Contains(shown, "BREAK-GLASS: the approvers are asleep") || !strings.Contains(shown, "carol@example.com with key SHA256:") {
		t.Errorf("numaform history %s lacks the break-glass approval:\n%s", last.ID, shown)
	}

	signWithOpenSSH(t, stage, &bob)
}

// TestSigningExample runs the commands in docs/approval.md with OpenSSH and a real ssh-agent, by
// name of the key and as the agent's only key.
func TestSigningExample(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sh", "ssh-keygen", "ssh-agent", "ssh-add"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Logf("%v: install the client of OpenSSH to run this test", err)
			return
		}
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "approval.md"))
	if err != nil {
		t.Fatal(err)
	}
	part := func(name, language string) string {
		_, rest, found := strings.Cut(string(page), "<!-- "+name+": run by test/e2e -->\n```"+language+"\n")
		text, _, ended := strings.Cut(rest, "```\n")
		if !found || !ended {
			t.Fatalf("docs/approval.md does not mark its %s", name)
		}
		return text
	}
	for _, key := range []string{"bob.pub", "ssh-agent"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			stage := oneHost(t)
			edit(t, stage, "numaform.yaml", "fleet:\n", part("configuration", "yaml")+"fleet:\n")
			commands := strings.Replace(part("commands", "sh"), "--sign-with bob.pub", "--sign-with "+key, 1)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			command := exec.Command("sh", "-euc", "numaform() { "+self+` "$@"; }`+"\n"+`trap 'kill "${SSH_AGENT_PID:-}" 2>/dev/null || true' EXIT`+"\n"+commands)
			command.Dir, command.Env = stage.Dir, append(stage.Env(), asProgram)
			out, err := command.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{"1 of 2 signatures (alice@example.com)", `Good "numaform-plan-v1" signature for alice@example.com`, "signed by alice@example.com, bob@example.com"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("the commands do not print %q:\n%s", want, out)
				}
			}
			if running(stage) < 2 {
				t.Errorf("%d guests run: the change was not applied", running(stage))
			}
		})
	}
}

// signWithOpenSSH approves another change with ssh-keygen, where it is installed.
func signWithOpenSSH(t *testing.T, stage *demo.Stage, bob *person) {
	t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Log("ssh-keygen is not installed: --sign-with was not tested")
		return
	}
	edit(t, stage, "numaform.yaml", "freeze: [{name: release, start: 2026-01-01T00:00:00Z, end: 2199-01-01T00:00:00Z}]", "freeze: []")
	edit(t, stage, "manifests/pods.yaml", "replicas: 8", "replicas: 16")
	before := running(stage)
	var report struct{ Digest string }
	if err := json.Unmarshal([]byte(run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "-o", "json")), &report); err != nil {
		t.Fatal(err)
	}
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--approve", report.Digest, "--sign-with", bob.file)
	if got := running(stage); got <= before {
		t.Errorf("a signature by ssh-keygen did not approve the change: %d guests run, before %d", got, before)
	}
}
