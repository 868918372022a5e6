package operator

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Load reads numaform.yaml at path and the NUMAFORM_… variables of environ (KEY=value, as
// from os.Environ), which override the file, and sets defaults. The error contains every
// mistake in the file. A variable with that prefix that corresponds to no key is an
// error, unless others lists it, such as the variables of flags. Load reads no secrets: a
// dry run on a recorded snapshot needs none.
func Load(path string, environ []string, others ...string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w: name it with --config, or write one with numaform init", err)
	}
	config := defaults()
	if err := decode(text, &config); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if err := applyEnvironment(&config, environ, others); err != nil {
		return nil, err
	}
	config.resolvePaths(filepath.Dir(path))
	config.setStateDir(environ)
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return &config, nil
}

// resolvePaths resolves the configuration's file names relative to dir.
func (c *Config) resolvePaths(dir string) {
	paths := []*string{&c.TopologyFile, &c.InstanceTypesFile, &c.StateDir, &c.History.KeyFile, &c.Fleet.Dir, &c.Fleet.Git.SSHKeyFile, &c.Engine.PluginDir, &c.Join.CAFile}
	for i := range c.Policy.Files {
		paths = append(paths, &c.Policy.Files[i])
	}
	if strings.Contains(c.Engine.Binary, "/") {
		c.Engine.Binary = resolve(dir, c.Engine.Binary)
		if !strings.Contains(c.Engine.Binary, "/") {
			c.Engine.Binary = "./" + c.Engine.Binary // a bare name would be searched for in PATH
		}
	}
	for hash, modules := range c.Modules.Allow {
		c.Modules.Allow[hash] = resolve(dir, modules)
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
