// Package redact removes secrets from texts that leave numaform, such as support bundles and
// notifications: the secrets that it knows, and whatever looks like one. It does not decide
// what such a text contains. Start at New.
package redact

import (
	"cmp"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Mark replaces a secret.
const Mark = "REDACTED"

// shortest is the minimum length of a known secret. Shorter texts would also match parts of
// ordinary words.
const shortest = 6

var (
	secretKey = regexp.MustCompile(`(?i)(secret|passw|passphrase|token|conn_str|credential|encryption|private|(access|customer|account|api|sas)_?key|^sas|authorization)`)
	// notSecret matches keys of names and paths.
	notSecret = regexp.MustCompile(`(?i)(_file|_id|_path|_suffix|_name|namespace|_url)$`)
	// secretFile matches keys of files that contain a secret.
	secretFile = regexp.MustCompile(`(?i)(secret|password|token|key)_file$`)
	// secretURL matches variables of URLs that contain a secret.
	secretURL = regexp.MustCompile(`^NUMAFORM_NOTIFICATIONS_TARGETS_\d+_URL(_FILE)?$`)
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
	regexp.MustCompile(`(hooks\.slack(?:-gov)?\.com/)[A-Za-z0-9/_-]+`),                            // Slack webhook
	regexp.MustCompile(`()\bsyt_[A-Za-z0-9_]{8,}`),                                                // Matrix access token
	regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)(\b(?:password|passwd|pwd|secret|token|sig)=)[^\s&"',;]+`),
}

// Redactor removes secrets from texts.
type Redactor struct {
	// known contains the secrets to remove wherever they occur.
	known []string
}

// New returns a Redactor that knows the secrets in environment variables (KEY=value, as from
// os.Environ).
func New(environ []string) *Redactor {
	r := &Redactor{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		url := secretURL.FindStringSubmatch(name)
		switch {
		case IsSecret(name), url != nil && url[1] == "":
			r.Learn(value)
		case IsSecretFile(name), url != nil:
			r.LearnFile(value, value)
		}
	}
	return r
}

// IsSecret reports whether the value of a key is a secret.
func IsSecret(key string) bool { return secretKey.MatchString(key) && !notSecret.MatchString(key) }

// IsSecretFile reports whether the value of a key is the name of a file with a secret.
func IsSecretFile(key string) bool { return secretFile.MatchString(key) }

// Learn adds a secret, also as it is written in JSON.
func (r *Redactor) Learn(secret string) {
	secret = strings.TrimSpace(secret)
	if len(secret) < shortest {
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

// LearnFile adds the content of the file at path. value is the configured name of the file:
// if no such file exists, the user may have pasted the secret itself there, so LearnFile
// adds value.
func (r *Redactor) LearnFile(path, value string) {
	if content, err := os.ReadFile(path); err == nil {
		r.Learn(string(content))
	} else if _, err := os.Lstat(path); err != nil {
		r.Learn(value)
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

// Text removes known secrets, and whatever looks like a secret.
func (r *Redactor) Text(text string) string {
	for _, secret := range r.known {
		text = strings.ReplaceAll(text, secret, Mark)
	}
	for _, pattern := range secretTexts {
		replacement := "${1}" + Mark
		if strings.HasSuffix(pattern.String(), "@") {
			replacement += "@"
		}
		text = pattern.ReplaceAllString(text, replacement)
	}
	return text
}
