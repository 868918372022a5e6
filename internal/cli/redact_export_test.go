package cli

// Redact returns a text without the secrets in environ and in the configuration at path, and
// the configuration without its secrets.
func Redact(environ []string, path, text string) (redacted, config string, err error) {
	r := newRedactor(environ)
	content, err := r.config(path)
	return string(r.text([]byte(text))), string(r.text(content)), err
}
