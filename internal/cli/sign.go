package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/freeze"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/signature"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// breakGlassFor is how long a break-glass approval is valid if --break-glass-until is not
// set.
const breakGlassFor = time.Hour

// agentKey is the value of --sign-with for the key of an ssh-agent.
const agentKey = "ssh-agent"

// signing contains the flags of an approval that is signed or breaks the glass.
type signing struct {
	// files contain signatures, and with is a key that signs now: a file, or agentKey.
	files []string
	with  string
	// breakGlass is the reason of an emergency approval, and until its end.
	breakGlass, until string
	// out is the file to which the text to sign is written.
	out string
}

func (s *signing) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&s.files, "signature", nil, "`FILE` with a signature of the approval, by ssh-keygen -Y sign -n "+signature.Namespace+"; repeatable")
	flags.StringVar(&s.with, "sign-with", "", "sign the approval with this SSH key: a `FILE` as for ssh-keygen -Y sign -f, or ssh-agent")
	flags.StringVar(&s.breakGlass, "break-glass", "", "emergency approval, for this `REASON`: without the required signatures and in spite of a freeze window; it is recorded and reported")
	flags.StringVar(&s.until, "break-glass-until", "", "`TIME` at which the break-glass approval expires, such as 2026-01-02T15:04:05Z (default: in an hour)")
	s.registerOut(flags)
}

// registerOut adds the flag that writes the text to sign.
func (s *signing) registerOut(flags *pflag.FlagSet) {
	flags.StringVar(&s.out, "statement", "", "write the text that approvers of the change sign to this `FILE`")
}

func (s *signing) check() error {
	switch {
	case s.until != "" && s.breakGlass == "":
		return usageError{errors.New("--break-glass-until requires --break-glass with the reason")}
	case s.breakGlass != "" && strings.TrimSpace(s.breakGlass) == "":
		return usageError{errors.New("--break-glass: must not be empty: give the reason")}
	case len(s.files) > signature.MaxSignatures:
		return usageError{fmt.Errorf("--signature: %d signatures: at most %d are supported", len(s.files), signature.MaxSignatures)}
	}
	_, err := s.end()
	return err
}

// end returns when the break-glass approval expires.
func (s *signing) end() (time.Time, error) {
	if s.until == "" {
		return time.Now().Add(breakGlassFor).UTC().Truncate(time.Second), nil
	}
	until, err := time.Parse(time.RFC3339, s.until)
	if err != nil {
		return until, usageError{fmt.Errorf("--break-glass-until %q: must be a time such as 2026-01-02T15:04:05Z", s.until)}
	}
	return until.UTC(), nil
}

// signs reports whether the flags contain or make a signature.
func (s *signing) signs() bool { return len(s.files) > 0 || s.with != "" }

// complete sets the part of a statement that the flags determine, and returns its text.
func (s *signing) complete(statement *signature.Statement) ([]byte, error) {
	if s.breakGlass != "" {
		until, err := s.end()
		if err != nil {
			return nil, err
		}
		statement.BreakGlass, statement.Until = s.breakGlass, until
	}
	return statement.Text()
}

// collect reads the signatures in files, and signs the text with a key.
func (s *signing) collect(ctx context.Context, process Process, text []byte) ([]string, error) {
	var signatures []string
	for _, file := range s.files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading --signature: %w", err)
		}
		if _, err := signature.Verify(text, string(content)); err != nil {
			if errors.Is(err, signature.ErrOtherText) {
				err = fmt.Errorf("%w: it must sign exactly the text that --statement writes", err)
			}
			return nil, fmt.Errorf("reading --signature %s: %w", file, err)
		}
		signatures = append(signatures, string(content))
	}
	if s.with == "" {
		return signatures, nil
	}
	sign := signByProgram
	if s.with == agentKey {
		sign = signByAgent
	}
	made, err := sign(ctx, process, s.with, text)
	if err != nil {
		return nil, err
	}
	if _, err := signature.Verify(text, made); err != nil {
		return nil, fmt.Errorf("signing with --sign-with %s: %w", s.with, err)
	}
	return append(signatures, made), nil
}

// signByProgram signs with ssh-keygen, which knows keys with a passphrase, keys on hardware
// and keys of an agent.
func signByProgram(ctx context.Context, process Process, key string, text []byte) (string, error) {
	program, err := exec.LookPath("ssh-keygen")
	if err != nil {
		return "", fmt.Errorf("signing with --sign-with %s: %w: install OpenSSH, or sign the text of --statement on another machine and use --signature", key, err)
	}
	command := exec.CommandContext(ctx, program, "-Y", "sign", "-n", signature.Namespace, "-f", key) //nolint:gosec // the user's own key
	command.Stdin, command.Stderr = bytes.NewReader(text), process.Stderr
	made, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("signing with ssh-keygen -Y sign -f %s: %w", key, err)
	}
	return string(made), nil
}

// signByAgent signs with the only key of the ssh-agent.
func signByAgent(ctx context.Context, process Process, _ string, text []byte) (string, error) {
	socket := ""
	for _, variable := range process.Environ {
		if value, ok := strings.CutPrefix(variable, "SSH_AUTH_SOCK="); ok {
			socket = value
		}
	}
	if socket == "" {
		return "", errors.New("signing with --sign-with ssh-agent: SSH_AUTH_SOCK is not set: start an agent, or name a key file")
	}
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", fmt.Errorf("signing with --sign-with ssh-agent: %w", err)
	}
	defer connection.Close() //nolint:errcheck // nothing was written to it
	keys, err := agent.NewClient(connection).Signers()
	if err != nil {
		return "", fmt.Errorf("reading the keys of the ssh-agent: %w", err)
	}
	if len(keys) != 1 {
		return "", fmt.Errorf("signing with --sign-with ssh-agent: the agent has %s: name the .pub file of one with --sign-with", topology.Count(len(keys), "key"))
	}
	fmt.Fprintf(process.Stderr, "Signing with key %s of the ssh-agent.\n", ssh.FingerprintSHA256(keys[0].PublicKey()))
	return signature.Sign(keys[0], text)
}

// scopeOf returns what the approval of plans concerns: their NodePools, and the rules that
// require approval.
func scopeOf(plans []scaler.RootPlan) (scope signature.Scope) {
	for i := range plans {
		plan := &plans[i]
		if plan.Err != nil || !plan.Changes() {
			continue
		}
		intent := &plan.Intent
		for _, target := range slices.Concat(intent.Create, intent.Delete, intent.Import, intent.Update, intent.Wake) {
			if !slices.Contains(scope.NodePools, target.Pool) {
				scope.NodePools = append(scope.NodePools, target.Pool)
			}
		}
		for _, finding := range plan.Verdict.Findings {
			if finding.Decision == guard.NeedsApproval && !slices.Contains(scope.Rules, string(finding.Rule)) {
				scope.Rules = append(scope.Rules, string(finding.Rule))
			}
		}
	}
	return scope
}

// frozen returns an error if a freeze window blocks the change.
func (p *proposal) frozen(o *options) error {
	if o.signing.breakGlass != "" {
		return nil
	}
	windows, err := p.session.config.Freezes()
	if err != nil {
		return err
	}
	for i := range p.plans {
		for _, direction := range directionsOf(&p.plans[i].Intent) {
			if active := windows.Active(p.session.clock.Now(), direction); active != nil {
				return fmt.Errorf("%s blocks changes; nothing was changed: wait, or in an emergency add --break-glass REASON", active)
			}
		}
	}
	return nil
}

// directionsOf returns the directions of an intent; both for a change without requests.
func directionsOf(intent *guard.Intent) []string {
	up := len(intent.Create)+len(intent.Import)+len(intent.Update)+len(intent.Wake) > 0
	switch {
	case up && len(intent.Delete) == 0:
		return []string{freeze.Up}
	case !up && len(intent.Delete) > 0:
		return []string{freeze.Down}
	}
	return []string{freeze.Up, freeze.Down}
}

// statement returns the statement that approves a change of the session's fleet.
func (p *proposal) statement(ctx context.Context, digest string) (*signature.Statement, error) {
	entries, err := p.session.scaler.History(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	newest := ""
	for i := range entries {
		if entries[i].Verified {
			newest = entries[i].Change.ID
		}
	}
	return &signature.Statement{ClusterID: p.session.config.ClusterID, Hash: digest, Subject: signature.ForChange(newest)}, nil
}

// writeStatement writes the text that approvers sign, if --statement is set.
func (p *proposal) writeStatement(ctx context.Context, process Process, o *options) error {
	if o.signing.out == "" || !p.changes() {
		return nil
	}
	statement, err := p.statement(ctx, digest(p.plans))
	if err != nil {
		return err
	}
	return o.signing.write(process, statement)
}

// write writes the text to sign to the file of --statement.
func (s *signing) write(process Process, statement *signature.Statement) error {
	text, err := s.complete(statement)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.out, text, 0o600); err != nil {
		return fmt.Errorf("writing --statement: %w", err)
	}
	fmt.Fprintf(process.Stderr, "To sign it: ssh-keygen -Y sign -n %s -f KEY %s\n", signature.Namespace, s.out)
	return nil
}

// signed returns the approval of a change, with its signatures. It returns an error if a
// signature is invalid, or if required ones are missing.
func (p *proposal) signed(ctx context.Context, process Process, o *options, digest string) (*audit.Approval, error) {
	approval := &audit.Approval{Digest: digest}
	policy, err := p.session.config.Signatures()
	if err != nil {
		return nil, err
	}
	scope := scopeOf(p.plans)
	required := needsApproval(p.plans) && policy.Requires(scope)
	if !required && !o.signing.signs() && o.signing.breakGlass == "" {
		return approval, nil
	}
	statement, err := p.statement(ctx, digest)
	if err != nil {
		return nil, err
	}
	text, err := o.signing.complete(statement)
	if err != nil {
		return nil, err
	}
	signatures, err := o.signing.collect(ctx, process, text)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	signers, err := policy.Verify(text, signatures, now)
	if err != nil {
		return nil, fmt.Errorf("%w; nothing was changed", err)
	}
	if required || o.signing.breakGlass != "" {
		if _, err := policy.Check(statement, signatures, scope, actor(), now); err != nil {
			return nil, fmt.Errorf("the approval needs signatures: %w; nothing was changed: sign with --sign-with KEY, "+
				"or write the text with --dry-run --statement FILE, have it signed, and add --signature FILE for each signature", err)
		}
	}
	signed, err := approval.Signed(statement, signers)
	if err != nil {
		return nil, err
	}
	if signed.BreakGlass != "" {
		fmt.Fprintf(process.Stderr, "numaform: BREAK-GLASS APPROVAL by %s: %s\n", actor(), signed.BreakGlass)
	}
	return &signed, nil
}

// approver names who approved a change, for its record.
func approver(how string, approval *audit.Approval) string {
	text := actor() + how
	names := make([]string, len(approval.Signatures))
	for i := range approval.Signatures {
		names[i] = approval.Signatures[i].Signer
	}
	if len(names) > 0 {
		text += ", signed by " + strings.Join(names, ", ")
	}
	if approval.BreakGlass != "" {
		text += ", break-glass: " + approval.BreakGlass
	}
	return text
}
