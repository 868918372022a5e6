package operator

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/numaform/numaform/internal/proxmox"
)

// ReadSecrets reads the secrets that are configured as files.
func (c *Config) ReadSecrets() error {
	var mistakes []error
	for i := range c.Clusters {
		if err := c.Clusters[i].readSecrets(); err != nil {
			mistakes = append(mistakes, fmt.Errorf("cluster %s: %w", c.Clusters[i].Region, err))
		}
	}
	return errors.Join(mistakes...)
}

// secret is a value that may be configured as a file instead.
type secret struct {
	key   string
	value *string
	file  string
}

func (c *Cluster) secrets() []secret {
	return []secret{
		{"token_id", &c.TokenID, c.TokenIDFile},
		{"token_secret", &c.TokenSecret, c.TokenSecretFile},
		{"password", &c.Password, c.PasswordFile},
	}
}

func (c *Cluster) readSecrets() error {
	for _, s := range c.secrets() {
		if s.file == "" {
			continue
		}
		if *s.value != "" {
			return fmt.Errorf("%s and %s_file are both set: keep one", s.key, s.key)
		}
		var err error
		if *s.value, err = s.read(); err != nil {
			return err
		}
	}
	return nil
}

func (s *secret) read() (string, error) {
	text, err := os.ReadFile(s.file)
	if err != nil {
		return "", fmt.Errorf("reading %s_file: %w: write the %s into it, or correct the path", s.key, err, s.key)
	}
	value := strings.TrimSpace(string(text))
	if value == "" {
		return "", fmt.Errorf("%s_file %s is empty: write the %s into it", s.key, s.file, s.key)
	}
	return value, nil
}

// reread returns a function that reads the cluster's credential again, because files may
// change while numaform runs; nil if it is not in a file.
func (c *Cluster) reread() func() (proxmox.Credential, error) {
	if c.TokenIDFile == "" && c.TokenSecretFile == "" && c.PasswordFile == "" {
		return nil
	}
	files := *c
	return func() (proxmox.Credential, error) {
		now := files
		for _, s := range now.secrets() {
			if s.file == "" {
				continue
			}
			var err error
			if *s.value, err = s.read(); err != nil {
				return proxmox.Credential{}, err
			}
		}
		return proxmox.Credential{TokenID: now.TokenID, TokenSecret: now.TokenSecret, Username: now.Username, Password: now.Password}, nil
	}
}
