package cli

import "github.com/numaform/numaform/internal/operator"

// Redact returns a text without the secrets in environ and in the configuration at path, and
// the configuration without its secrets.
func Redact(environ []string, path, text string) (redacted, config string, err error) {
	r := newRedactor(environ)
	if config, err := operator.Load(path, environ); err == nil {
		r.named(config)
	}
	content, err := r.config(path)
	return string(r.text([]byte(text))), string(r.text(content)), err
}
