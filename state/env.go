package state

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// runVariable marks the engine and its providers as started for a workspace: a
// provider whose engine was killed is found by it.
const runVariable = "NUMAFORM_RUN"

// inherited are the variables of our own environment that the engine sees:
// what programs need anywhere, and what logs backends in. Everything else of the
// engine's behavior is said explicitly.
var inherited = []string{
	"HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "LANG", "LC_ALL", "PATH",
	"SSL_CERT_DIR", "SSL_CERT_FILE", "TF_ENCRYPTION", "TMPDIR", "USER",
	"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
}

// inheritedPrefixes are those of the backends' own variables.
var inheritedPrefixes = []string{
	"ARM_", "AWS_", "CONSUL_", "GOOGLE_", "KUBE_", "PG", "TF_HTTP_", "TF_TOKEN_",
}

// encryptionVariable holds OpenTofu's configuration of encryption, keys included.
const encryptionVariable = "TF_ENCRYPTION"

// checkEncryption makes sure that a state which is to be encrypted is, and that
// none is by accident: it could not be read where the variable is not set.
func checkEncryption(c *Config, env map[string]string) error {
	given := env[encryptionVariable] != ""
	switch {
	case c.Encryption && !strings.Contains(c.Engine.Name(), "tofu"):
		return fmt.Errorf("encryption of states is OpenTofu's, and the engine is %s: set engine.binary to tofu, or take encryption out of fleet.backend", c.Engine)
	case c.Encryption && !given:
		return errors.New("states are to be encrypted, and the variable " + encryptionVariable +
			" is not set: set it to OpenTofu's configuration of encryption with the key, or take encryption out of fleet.backend")
	case !c.Encryption && given:
		return errors.New("the variable " + encryptionVariable + " is set, and fleet.backend does not ask for encryption: " +
			"set encryption there, or unset the variable")
	}
	return nil
}

// environment returns what the engine sees, from our own environment, the
// caller's additions and the workspace's mark.
func environment(own []string, additions map[string]string, mark string) map[string]string {
	env := map[string]string{}
	for _, entry := range own {
		name, value, _ := strings.Cut(entry, "=")
		prefixed := slices.ContainsFunc(inheritedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
		if prefixed || slices.Contains(inherited, name) {
			env[name] = value
		}
	}
	// Engine and provider live for seconds: collecting garbage costs more than it
	// saves.
	env["GOGC"] = "400"
	env["CHECKPOINT_DISABLE"] = "1"
	maps.Copy(env, additions)
	env[runVariable] = mark
	return env
}

// secretName matches names of variables whose values must not be shown.
var secretName = regexp.MustCompile(`(?i)TOKEN|PASSWORD|PASSWD|SECRET|TICKET|PRIVATE|ACCESS_KEY|CONN_STR|CREDENTIALS|ENCRYPTION`)

// redacted stands where a secret was.
const redacted = "[redacted]"

// redactor takes secrets out of what the engine says.
type redactor struct{ replacer *strings.Replacer }

// newRedactor hides the values of secret variables, and of "name=secret" the
// secret on its own.
func newRedactor(env map[string]string) redactor {
	var secrets []string
	for name, value := range env {
		if !secretName.MatchString(name) {
			continue
		}
		_, tail, _ := strings.Cut(value, "=")
		for _, s := range append(passwords(value), value, tail) {
			if len(s) >= 6 {
				secrets = append(secrets, s)
			}
		}
	}
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	pairs := make([]string, 0, 2*len(secrets))
	for _, s := range secrets {
		pairs = append(pairs, s, redacted)
	}
	return redactor{strings.NewReplacer(pairs...)}
}

// passwordIn matches the password of a connection string.
var passwordIn = regexp.MustCompile(`://[^/@\s]*?:([^@\s]+)@|password\s*=\s*'?((?:[^'\\\s]|\\.)+)`)

// passwords returns those that a connection string holds.
func passwords(value string) []string {
	var found []string
	for _, match := range passwordIn.FindAllStringSubmatch(value, -1) {
		found = append(found, match[1]+match[2])
	}
	return found
}

func (r redactor) hide(s string) string { return r.replacer.Replace(s) }

// redactingWriter hides secrets of whole lines, which is how the engine's output
// arrives.
type redactingWriter struct {
	redactor
	to io.Writer
}

// Write implements io.Writer.
func (w redactingWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, w.hide(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
