package operator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/numaform/numaform/internal/store"
)

// gitToken is the environment variable with the password of a git remote.
const gitToken = environmentPrefix + "GIT_TOKEN"

// Kubeconfig says which Kubernetes cluster to use and how to reach it; empty fields mean
// the defaults.
type Kubeconfig struct {
	Path, Context string
	// Rest, if set, overrides all other fields.
	Rest *rest.Config
	// Namespace is the namespace of numaform's own objects; empty outside of a cluster.
	Namespace string
}

// rest returns the client configuration for the cluster.
func (k Kubeconfig) rest() (*rest.Config, error) {
	if k.Rest != nil {
		return k.Rest, nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.Path
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.Context}).ClientConfig()
}

func (g *Git) enabled() bool { return g.Enabled || g.Remote != "" }

func (f *Fleet) check() []error {
	var mistakes []error
	configMaps := f.ConfigMap != (ConfigMap{})
	if f.Git.enabled() && configMaps {
		mistakes = append(mistakes, errors.New("fleet: git and configmap are both set: a fleet is kept in one of them"))
	}
	if !f.Git.enabled() && f.Git != (Git{}) {
		mistakes = append(mistakes, errors.New("fleet.git: neither remote nor enabled is set: set remote to the repository's URL, or enabled: true for one without a remote"))
	}
	if configMaps && (f.ConfigMap.Namespace == "" || f.ConfigMap.Name == "") {
		mistakes = append(mistakes, errors.New("fleet.configmap: want namespace and name"))
	}
	if configMaps && f.Backend.Type == "local" && f.Backend.Config["path"] == "" {
		mistakes = append(mistakes, errors.New("fleet.backend: a fleet in ConfigMaps needs states that outlive a pod: use type kubernetes, pg, s3 or http"))
	}
	backends := []string{"local", "kubernetes", "pg", "s3", "http", "gcs", "azurerm", "consul", "cos", "oss"}
	if !slices.Contains(backends, f.Backend.Type) {
		mistakes = append(mistakes, fmt.Errorf("fleet.backend.type %q: %s", f.Backend.Type, didYouMean(f.Backend.Type, backends)))
	}
	return mistakes
}

// FleetDir returns the fleet's directory.
func (c *Config) FleetDir() string {
	return filepath.Join(c.Fleet.Dir, filepath.FromSlash(c.Fleet.Git.Subdir))
}

// OpenStore returns the fleet's store, with a history sealed by this installation's key.
// It makes no requests.
func (c *Config) OpenStore(environ []string, cluster Kubeconfig) (*store.Sealed, error) {
	inner, err := c.openStore(environ, cluster)
	if err != nil {
		return nil, err
	}
	vault, err := c.vault(cluster)
	if err != nil {
		return nil, err
	}
	return store.NewSealed(inner, vault, c.ClusterID), nil
}

// historySecret is the Secret in numaform's namespace with the key of a history, unless
// the history is in ConfigMaps. The Secret is then prefixed with the fleet's name.
const historySecret = "numaform-history"

// vault returns where the key of the history is: in the configured file; or in the
// namespace of the fleet's ConfigMaps, readable by everyone who may read Secrets there;
// or in numaform's own namespace; or in this machine's state directory.
func (c *Config) vault(cluster Kubeconfig) (store.Vault, error) {
	secret := store.SecretVault{Namespace: cluster.Namespace, Name: historySecret}
	if at := c.Fleet.ConfigMap; at != (ConfigMap{}) {
		secret.Namespace, secret.Name = at.Namespace, at.Name+"-history"
	}
	switch {
	case c.History.KeyFile != "":
		return store.FileVault(c.History.KeyFile), nil
	case secret.Namespace == "":
		path, err := c.StatePath("history", "key")
		return store.FileVault(path), err
	}
	var err error
	secret.Client, err = cluster.client()
	return secret, err
}

// client returns a client of the cluster.
func (k Kubeconfig) client() (kubernetes.Interface, error) {
	config, err := k.rest()
	if err != nil {
		return nil, fmt.Errorf("opening the fleet's ConfigMaps: %w: name the cluster with --kubeconfig", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	return client, nil
}

func (c *Config) openStore(environ []string, cluster Kubeconfig) (store.Store, error) {
	git := &c.Fleet.Git
	switch {
	case git.enabled():
		clone, err := c.StatePath("git")
		if err != nil {
			return nil, fmt.Errorf("opening the fleet's repository: %w", err)
		}
		config := store.GitConfig{
			Clone: clone, Dir: c.Fleet.Dir, Subdir: git.Subdir, Remote: git.Remote, Branch: git.Branch, Review: git.Review,
			Author: store.GitAuthor{Name: git.AuthorName, Email: git.AuthorEmail},
			Auth:   store.GitAuth{Username: git.Username, SSHKey: git.SSHKeyFile},
		}
		for _, entry := range environ {
			if token, ok := strings.CutPrefix(entry, gitToken+"="); ok {
				config.Auth.Token = token
			}
		}
		return store.NewGit(config)
	case c.Fleet.ConfigMap != (ConfigMap{}):
		return c.openConfigMaps(cluster)
	}
	return store.NewDirectory(c.Fleet.Dir), nil
}

func (c *Config) openConfigMaps(cluster Kubeconfig) (store.Store, error) {
	client, err := cluster.client()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Fleet.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("opening the fleet's ConfigMaps: %w: set fleet.dir to a directory that numaform may write", err)
	}
	return store.NewConfigMap(client, c.Fleet.ConfigMap.Namespace, c.Fleet.ConfigMap.Name)
}
