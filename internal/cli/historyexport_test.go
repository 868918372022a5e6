package cli_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	attestation "github.com/in-toto/attestation/go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/signerverifier"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/numaform/numaform/internal/cli"
)

// verifierOf returns a verifier of DSSE's library with the key that numaform history key
// prints.
func verifierOf(t *testing.T, key string) *dsse.EnvelopeVerifier {
	t.Helper()
	parts := strings.SplitN(key, "+", 3)
	content, err := base64.StdEncoding.DecodeString(parts[2])
	if err != nil || len(content) != 1+ed25519.PublicKeySize {
		t.Fatalf("key %q: %d bytes, %v", key, len(content), err)
	}
	verifier, err := signerverifier.NewED25519SignerVerifierFromSSLibKey(&signerverifier.SSLibKey{
		KeyID: key, KeyType: signerverifier.ED25519KeyType, KeyVal: signerverifier.KeyVal{Public: hex.EncodeToString(content[1:])},
	})
	if err != nil {
		t.Fatal(err)
	}
	envelopes, err := dsse.NewEnvelopeVerifier(verifier)
	if err != nil {
		t.Fatal(err)
	}
	return envelopes
}

// TestHistoryExport verifies exported envelopes with the libraries of DSSE and in-toto.
func TestHistoryExport(t *testing.T) {
	t.Parallel()
	s := newHistoryStage(t)
	s.run(t, cli.ExitFailed, "no key yet", "export", "--config", s.config)
	first, second := s.add(t), s.add(t)
	verifier := verifierOf(t, strings.TrimSpace(s.run(t, cli.ExitOK, "", "key", "--config", s.config)))
	lines := strings.Split(strings.TrimSpace(s.run(t, cli.ExitOK, "", "export", "--config", s.config)), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d envelopes, want 2", len(lines))
	}
	for i, id := range []string{first, second} {
		var envelope dsse.Envelope
		if err := json.Unmarshal([]byte(lines[i]), &envelope); err != nil {
			t.Fatal(err)
		}
		if _, err := verifier.Verify(t.Context(), &envelope); err != nil {
			t.Fatalf("the envelope of %s: %v", id, err)
		}
		payload, err := envelope.DecodeB64Payload()
		if err != nil {
			t.Fatal(err)
		}
		var statement attestation.Statement
		if err := protojson.Unmarshal(payload, &statement); err != nil {
			t.Fatal(err)
		}
		if err := statement.Validate(); err != nil || envelope.PayloadType != "application/vnd.in-toto+json" {
			t.Errorf("the statement of %s: %v", id, err)
		}
		if got := statement.GetSubject()[0].GetName(); got != "change/"+id || len(statement.GetSubject()) != 2 {
			t.Errorf("the first of %d subjects is %q, want that of change %s", len(statement.GetSubject()), got, id)
		}
		if why := statement.GetPredicate().GetFields()["change"].GetStructValue().GetFields()["why"].GetStringValue(); why != "a test" {
			t.Errorf("the predicate of %s has the reason %q", id, why)
		}
		envelope.Payload = base64.StdEncoding.EncodeToString([]byte(strings.Replace(string(payload), "a test", "a text", 1)))
		if _, err := verifier.Verify(t.Context(), &envelope); err == nil {
			t.Error("an edited envelope was verified")
		}
	}

	if one := s.run(t, cli.ExitOK, "", "export", second, "--config", s.config); strings.TrimSpace(one) != lines[1] {
		t.Errorf("the envelope of one change:\n%s\nwant\n%s", one, lines[1])
	}
	s.run(t, cli.ExitFailed, "no change", "export", "20261121T101500Z-1", "--config", s.config)
	s.run(t, cli.ExitUsage, "must not be negative", "export", "--since", "-1h", "--config", s.config)
	record := s.path("fleet", "history", first+".json")
	content, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	put(t, record, strings.Replace(string(content), "a test", "forged", 1))
	s.run(t, cli.ExitFailed, "cannot be verified", "export", first, "--config", s.config)
	if out := s.run(t, cli.ExitOK, "left out 1 change", "export", "--config", s.config); strings.Contains(out, "forged") {
		t.Errorf("a forged record was signed:\n%s", out)
	}
}
