package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/operator"
)

// redacted replaces a secret.
const redacted = "REDACTED"

// shortestSecret is the minimum length of a known secret. Shorter texts would also match
// parts of ordinary words.
const shortestSecret = 6

var (
	secretKey = regexp.MustCompile(`(?i)(secret|passw|passphrase|token|conn_str|credential|encryption|private|(access|customer|account|api|sas)_?key|^sas|authorization)`)
	// notSecret matches keys of names and paths.
	notSecret = regexp.MustCompile(`(?i)(_file|_id|_path|_suffix|_name|namespace|_url)$`)
	// secretFile matches keys of files that contain a secret.
	secretFile = regexp.MustCompile(`(?i)(secret|password|token|key)_file$`)
)

// secretTexts matches texts that look like a secret; the first group is kept.
var secretTexts = []*regexp.Regexp{
	regexp.MustCompile(`(://)[^/\s@"']+@`), // a URL may contain a token instead of a user
	regexp.MustCompile(`()-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)-----END [A-Z ]*PRIVATE KEY-----`),
	regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`),             // JSON Web Token
	regexp.MustCompile(`()\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),                                         // bootstrap token
	regexp.MustCompile(`(![A-Za-z0-9._-]+=)[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}`), // Proxmox API token
	regexp.MustCompile(`()\bPVE:[^\s"':]+:[0-9A-F]{8}::[A-Za-z0-9+/=]+`),                          // Proxmox ticket
	regexp.MustCompile(`()\bK10[0-9a-f]{32,}::[^\s"']+`),                                          // k3s token
	regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)(\b(?:password|passwd|pwd|secret|token|sig)=)[^\s&"',;]+`),
}

// redactor removes secrets from texts.
type redactor struct {
	// known contains the secrets to remove wherever they occur.
	known []string
}

// newRedactor returns a redactor that knows the secrets in environment variables.
func newRedactor(environ []string) *redactor {
	r := &redactor{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case isSecret(name):
			r.learn(value)
		case secretFile.MatchString(name):
			r.learnFile(value, value)
		}
	}
	return r
}

// isSecret reports whether the value of a key is a secret.
func isSecret(key string) bool { return secretKey.MatchString(key) && !notSecret.MatchString(key) }

// learn adds a secret, also as it is written in JSON.
func (r *redactor) learn(secret string) {
	secret = strings.TrimSpace(secret)
	if len(secret) < shortestSecret {
		return
	}
	for _, form := range []string{secret, inJSON(secret)} {
		if !slices.Contains(r.known, form) {
			r.known = append(r.known, form)
		}
	}
	// A secret may contain a shorter one.
	slices.SortFunc(r.known, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
}

// learnFile adds the content of the file at path. value is the configured name of the file:
// if no such file exists, the user may have pasted the secret itself there, so learnFile
// adds value.
func (r *redactor) learnFile(path, value string) {
	if content, err := os.ReadFile(path); err == nil {
		r.learn(string(content))
	} else if _, err := os.Lstat(path); err != nil {
		r.learn(value)
	}
}

// named learns the contents of the files with secrets that a configuration names, including
// the names from environment variables.
func (r *redactor) named(config *operator.Config) {
	for _, path := range config.SecretFiles() {
		r.learnFile(path, filepath.Base(path))
	}
}

// inJSON returns a text as a JSON string without the surrounding quotes.
func inJSON(text string) string {
	encoded, err := json.Marshal(text)
	if err != nil {
		return text
	}
	return strings.Trim(string(encoded), `"`)
}

// text removes known secrets, and whatever looks like a secret.
func (r *redactor) text(content []byte) []byte {
	text := string(content)
	for _, secret := range r.known {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	for _, pattern := range secretTexts {
		replacement := "${1}" + redacted
		if strings.HasSuffix(pattern.String(), "@") {
			replacement += "@"
		}
		text = pattern.ReplaceAllString(text, replacement)
	}
	return []byte(text)
}

// config returns a configuration file without its secrets. It learns these secrets, and the
// contents of the files with secrets that the configuration names.
func (r *redactor) config(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("%s is not valid YAML, so its secrets cannot be recognized: correct it, then collect the bundle again", path)
	}
	r.walk(&document, filepath.Dir(path))
	return yaml.Marshal(&document)
}

// walk redacts the values of a YAML node. Comments may contain secrets, so it drops them.
func (r *redactor) walk(node *yaml.Node, dir string) {
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	if node.Kind != yaml.MappingNode {
		for _, child := range node.Content {
			r.walk(child, dir)
		}
		return
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case isSecret(key.Value):
			r.hide(value)
		case secretFile.MatchString(key.Value) && value.Kind == yaml.ScalarNode:
			file := value.Value
			if !filepath.IsAbs(file) {
				file = filepath.Join(dir, file)
			}
			r.learnFile(file, value.Value)
		}
		r.walk(key, dir)
		r.walk(value, dir)
	}
}

// hide learns and replaces all values below a node, except booleans and nulls.
func (r *redactor) hide(node *yaml.Node) {
	for _, child := range node.Content {
		r.hide(child)
	}
	if node.Kind == yaml.ScalarNode && node.Tag != "!!bool" && node.Tag != "!!null" {
		r.learn(node.Value)
		node.Value, node.Tag, node.Style = redacted, "!!str", 0
	}
}

// kubeconfig learns the credentials of a kubeconfig.
func (r *redactor) kubeconfig(cluster operator.Kubeconfig) {
	config, err := cluster.Load()
	if err != nil {
		return
	}
	for _, secret := range []string{config.BearerToken, config.Password, string(config.KeyData)} {
		r.learn(secret)
	}
	if content, err := os.ReadFile(config.BearerTokenFile); err == nil {
		r.learn(string(content))
	}
}
