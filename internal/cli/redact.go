package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/redact"
)

// redactor removes secrets from texts and configuration files.
type redactor struct{ *redact.Redactor }

// newRedactor returns a redactor that knows the secrets in environment variables.
func newRedactor(environ []string) *redactor { return &redactor{redact.New(environ)} }

// text removes known secrets, and whatever looks like a secret.
func (r *redactor) text(content []byte) []byte { return []byte(r.Text(string(content))) }

// named learns the contents of the files with secrets that a configuration names, including
// the names from environment variables.
func (r *redactor) named(config *operator.Config) {
	for _, path := range config.SecretFiles() {
		r.LearnFile(path, filepath.Base(path))
	}
	for _, target := range config.Notifications.Targets { // some are in variables
		for _, secret := range target.Secrets() {
			r.Learn(secret)
		}
	}
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
	r.walk(&document, filepath.Dir(path), false)
	return yaml.Marshal(&document)
}

// walk redacts the values of a YAML node. Comments may contain secrets, so it drops them.
// notifications is set below the key of that name, whose URLs are secrets.
func (r *redactor) walk(node *yaml.Node, dir string, notifications bool) {
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	if node.Kind != yaml.MappingNode {
		for _, child := range node.Content {
			r.walk(child, dir, notifications)
		}
		return
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case redact.IsSecret(key.Value), notifications && key.Value == "url":
			r.hide(value)
		case (redact.IsSecretFile(key.Value) || notifications && key.Value == "url_file") && value.Kind == yaml.ScalarNode:
			file := value.Value
			if !filepath.IsAbs(file) {
				file = filepath.Join(dir, file)
			}
			r.LearnFile(file, value.Value)
		}
		r.walk(key, dir, notifications)
		r.walk(value, dir, notifications || key.Value == "notifications")
	}
}

// hide learns and replaces all values below a node, except booleans and nulls.
func (r *redactor) hide(node *yaml.Node) {
	for _, child := range node.Content {
		r.hide(child)
	}
	if node.Kind == yaml.ScalarNode && node.Tag != "!!bool" && node.Tag != "!!null" {
		r.Learn(node.Value)
		node.Value, node.Tag, node.Style = redact.Mark, "!!str", 0
	}
}

// kubeconfig learns the credentials of a kubeconfig.
func (r *redactor) kubeconfig(cluster operator.Kubeconfig) {
	config, err := cluster.Load()
	if err != nil {
		return
	}
	for _, secret := range []string{config.BearerToken, config.Password, string(config.KeyData)} {
		r.Learn(secret)
	}
	if content, err := os.ReadFile(config.BearerTokenFile); err == nil {
		r.Learn(string(content))
	}
}
