package operator

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// setStateDir sets the default state directory: one per fleet below the user's state
// directory, as in the XDG Base Directory Specification. Without a home directory it
// stays empty, and StatePath returns an error.
func (c *Config) setStateDir(environ []string) {
	if c.StateDir != "" {
		return
	}
	variables := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		variables[name] = value
	}
	base := variables["XDG_STATE_HOME"]
	if base == "" && variables["HOME"] != "" {
		base = filepath.Join(variables["HOME"], ".local", "state")
	}
	if !filepath.IsAbs(base) {
		return
	}
	sum := sha256.Sum256([]byte(c.fleetIdentity()))
	c.StateDir = filepath.Join(base, "numaform", c.ClusterID+"-"+hex.EncodeToString(sum[:4]))
}

// fleetIdentity distinguishes this fleet from others of the same user.
func (c *Config) fleetIdentity() string {
	switch {
	case c.Fleet.Git.Remote != "":
		return fmt.Sprintf("git %q %q %q", c.Fleet.Git.Remote, c.Fleet.Git.Branch, c.Fleet.Git.Subdir)
	case c.Fleet.ConfigMap != (ConfigMap{}):
		return fmt.Sprintf("configmap %q %q", c.Fleet.ConfigMap.Namespace, c.Fleet.ConfigMap.Name)
	}
	dir, err := filepath.Abs(c.FleetDir())
	if err != nil {
		dir = c.FleetDir()
	}
	return fmt.Sprintf("directory %q", dir)
}

// StatePath returns the path of a file or directory below the state directory.
func (c *Config) StatePath(elements ...string) (string, error) {
	if c.StateDir == "" {
		return "", errors.New("there is no state directory: set state_dir in numaform.yaml, or the variable HOME")
	}
	dir, err := filepath.Abs(c.StateDir)
	if err != nil {
		return "", fmt.Errorf("finding the state directory %s: %w", c.StateDir, err)
	}
	return filepath.Join(append([]string{dir}, elements...)...), nil
}
