package operator

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Load reads numaform.yaml at path and the NUMAFORM_… variables of environ
// (KEY=value, as os.Environ gives them), which win over the file, and fills in
// defaults. Every mistake in the file is in the error. It reads no secret: a dry
// run on a recorded snapshot needs none.
func Load(path string, environ []string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w: name it with --config", err)
	}
	config := defaults()
	if err := decode(text, &config); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if err := applyEnvironment(&config, environ); err != nil {
		return nil, err
	}
	config.resolvePaths(filepath.Dir(path))
	for i := range config.Clusters {
		config.Clusters[i].setDefaults()
	}
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return &config, nil
}

var unknownField = regexp.MustCompile(`line (\d+): field (\S+) not found in type \S+`)

func decode(text []byte, config *Config) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	err := decoder.Decode(config)
	var typeError *yaml.TypeError
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &typeError):
		mistakes := make([]error, len(typeError.Errors))
		for i, message := range typeError.Errors {
			mistakes[i] = errors.New(unknownField.ReplaceAllString(message,
				"line $1: unknown key $2: see README.md for the keys"))
		}
		return errors.Join(mistakes...)
	}
	return err
}

// resolvePaths makes the file names of the configuration relative to dir.
func (c *Config) resolvePaths(dir string) {
	paths := []*string{&c.TopologyFile, &c.InstanceTypesFile, &c.Fleet.Dir, &c.Fleet.Git.SSHKeyFile, &c.Engine.PluginDir, &c.Join.CAFile}
	for i := range c.Policy.Files {
		paths = append(paths, &c.Policy.Files[i])
	}
	if strings.Contains(c.Engine.Binary, "/") {
		paths = append(paths, &c.Engine.Binary)
	}
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		paths = append(paths, &cluster.CAFile, &cluster.TokenIDFile, &cluster.TokenSecretFile, &cluster.PasswordFile)
		for host, file := range cluster.Machines {
			cluster.Machines[host] = resolve(dir, file)
		}
	}
	for _, path := range paths {
		*path = resolve(dir, *path)
	}
	if backend := c.Fleet.Backend; backend.Type == "local" && backend.Config["path"] != "" {
		backend.Config["path"] = resolve(dir, backend.Config["path"])
	}
}

func resolve(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// ReadSecrets fills the secrets that stand in files.
func (c *Config) ReadSecrets() error {
	var mistakes []error
	for i := range c.Clusters {
		if err := c.Clusters[i].readSecrets(); err != nil {
			mistakes = append(mistakes, fmt.Errorf("cluster %s: %w", c.Clusters[i].Region, err))
		}
	}
	return errors.Join(mistakes...)
}

func (c *Cluster) readSecrets() error {
	for _, s := range []struct {
		key   string
		value *string
		file  string
	}{
		{"token_id", &c.TokenID, c.TokenIDFile},
		{"token_secret", &c.TokenSecret, c.TokenSecretFile},
		{"password", &c.Password, c.PasswordFile},
	} {
		if s.file == "" {
			continue
		}
		if *s.value != "" {
			return fmt.Errorf("%s and %s_file are both set: keep one", s.key, s.key)
		}
		text, err := os.ReadFile(s.file)
		if err != nil {
			return fmt.Errorf("reading %s_file: %w: write the %s into it, or correct the path", s.key, err, s.key)
		}
		*s.value = strings.TrimSpace(string(text))
		if *s.value == "" {
			return fmt.Errorf("%s_file %s is empty: write the %s into it", s.key, s.file, s.key)
		}
	}
	return nil
}

func (c *Config) check() error {
	var mistakes []error
	if err := fleet.CheckClusterID(c.ClusterID); err != nil {
		mistakes = append(mistakes, err)
	}
	if len(c.Clusters) == 0 {
		mistakes = append(mistakes, errors.New("clusters: want at least one Proxmox cluster with region and url"))
	}
	mistakes = append(mistakes, c.Fleet.check()...)
	mistakes = append(mistakes, c.Policy.Limits.check()...)
	seen := map[topology.RegionName]bool{}
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		if seen[cluster.Region] {
			mistakes = append(mistakes, fmt.Errorf("clusters[%d]: region %q is there twice: give each cluster its own", i, cluster.Region))
		}
		seen[cluster.Region] = true
		for _, err := range cluster.check() {
			mistakes = append(mistakes, fmt.Errorf("clusters[%d]: %w", i, err))
		}
	}
	return errors.Join(mistakes...)
}

var regionName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

func (c *Cluster) check() []error {
	var mistakes []error
	if !regionName.MatchString(string(c.Region)) {
		mistakes = append(mistakes, fmt.Errorf("region %q: want a-z, 0-9, - and ., as it becomes a label and a directory", c.Region))
	}
	endpoint, err := url.Parse(c.URL)
	if err != nil || endpoint.Scheme != "https" || endpoint.Host == "" {
		mistakes = append(mistakes, fmt.Errorf("url %q: want https://HOST:8006/api2/json", c.URL))
	}
	bounds := fleet.VMIDRange(c.VMIDRange)
	if err := bounds.Check(); err != nil {
		mistakes = append(mistakes, err)
	}
	return mistakes
}

// Endpoint returns the URL without a path, as the provider wants it.
func (c *Cluster) Endpoint() string {
	endpoint, err := url.Parse(c.URL)
	if err != nil {
		return c.URL
	}
	return endpoint.Scheme + "://" + endpoint.Host + "/"
}
