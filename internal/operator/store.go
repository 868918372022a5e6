package operator

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state"
)

// gitToken is the environment variable with the password of a git remote.
const gitToken = environmentPrefix + "GIT_TOKEN"

// checkpointToken is the environment variable with the password of history.checkpoint_remote.
const checkpointToken = environmentPrefix + "CHECKPOINT_TOKEN"

// ownNamespace is the environment variable with the namespace of numaform's own objects,
// which the chart sets in the controller's pod.
const ownNamespace = environmentPrefix + "NAMESPACE"

// Kubeconfig selects a Kubernetes cluster and the connection to it; empty fields mean
// the defaults.
type Kubeconfig struct {
	Path, Context string
	// Rest, if set, overrides all other fields.
	Rest *rest.Config
	// Namespace is the namespace of the controller's own objects, to use the controller's key of
	// the history; empty in most other commands.
	Namespace string
}

// Load returns the client configuration for the cluster. In a pod, it is the pod's own
// cluster if no kubeconfig selects another one.
func (k Kubeconfig) Load() (*rest.Config, error) {
	if k.Rest != nil {
		return k.Rest, nil
	}
	config, err := scheduling.ClientConfig(k.Path, k.Context)
	if errors.Is(err, scheduling.ErrNoKubeconfig) {
		return nil, fmt.Errorf("%w: set --kubeconfig", err)
	}
	if err != nil {
		return nil, err
	}
	config.UserAgent = "numaform"
	return config, nil
}

// login returns a kubeconfig with only the selected context, or an empty one if no
// kubeconfig selects a cluster, as in a pod.
func (k Kubeconfig) login() (state.Kubeconfig, error) {
	failed := func(err error) (state.Kubeconfig, error) {
		return state.Kubeconfig{}, fmt.Errorf("reading the kubeconfig for the states: %w: correct --kubeconfig or --context", err)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.Path
	config, err := rules.Load() // with absolute paths of the files that it names
	if err != nil {
		return failed(err)
	}
	if k.Context != "" {
		config.CurrentContext = k.Context
	}
	if config.CurrentContext == "" && k.Path == "" {
		return state.Kubeconfig{}, nil
	}
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return failed(err)
	}
	selected := config.Contexts[config.CurrentContext]
	cluster := config.Clusters[selected.Cluster]
	if cluster == nil {
		return failed(fmt.Errorf("context %q refers to cluster %q, which is not in the file", config.CurrentContext, selected.Cluster))
	}
	content, err := clientcmd.Write(*config)
	if err != nil {
		return failed(err)
	}
	return state.Kubeconfig{Content: content, Server: cluster.Server}, nil
}

// ownLogin lists the settings of the kubernetes backend that select an API server.
var ownLogin = []string{"config_path", "config_paths", "config_context", "config_context_auth_info", "config_context_cluster", "host", "in_cluster_config"}

// backendLogin returns the engine's login to the API server that stores the states: the
// cluster of the command, unless the backend's own settings or its KUBE_* variables
// select another one.
func (c *Config) backendLogin(environ []string, cluster Kubeconfig) (state.Kubeconfig, error) {
	if c.Fleet.Backend.Type != "kubernetes" || c.hasOwnLogin(environ) {
		return state.Kubeconfig{}, nil
	}
	return cluster.login()
}

// hasOwnLogin reports whether the backend's own settings or its KUBE_* variables select the
// API server of the states.
func (c *Config) hasOwnLogin(environ []string) bool {
	return slices.ContainsFunc(environ, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return state.SelectsCluster(name)
	}) || slices.ContainsFunc(ownLogin, func(key string) bool {
		_, own := c.Fleet.Backend.Config[key]
		return own
	})
}

// client returns a client of the cluster.
func (k Kubeconfig) client() (kubernetes.Interface, error) {
	config, err := k.Load()
	if err != nil {
		return nil, fmt.Errorf("opening the fleet's store: %w", err)
	}
	// A large fleet has megabytes of ConfigMaps, which take several times as long to read in
	// JSON.
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	return client, nil
}

// historySecret is the Secret in numaform's namespace with the key of the history. For a
// fleet in ConfigMaps, the Secret is instead in their namespace, and its name is the fleet's
// name with the suffix -history.
const historySecret = "numaform-history"

func (g *Git) enabled() bool { return g.Enabled || g.Remote != "" }

// InGit reports whether the fleet is stored in a git repository.
func (f *Fleet) InGit() bool { return f.Git.enabled() }

// check returns all errors in the fleet's configuration.
func (f *Fleet) check() []error {
	var mistakes []error
	configMaps := f.ConfigMap != (ConfigMap{})
	if f.Git.enabled() && configMaps {
		mistakes = append(mistakes, errors.New("fleet: git and configmap are both set: remove one of them"))
	}
	if !f.Git.enabled() && !reflect.DeepEqual(f.Git, newGit()) {
		mistakes = append(mistakes, errors.New("fleet.git: neither remote nor enabled is set: set remote to the repository's URL, or enabled: true for one without a remote"))
	}
	if configMaps && (f.ConfigMap.Namespace == "" || f.ConfigMap.Name == "") {
		mistakes = append(mistakes, errors.New("fleet.configmap: namespace or name is empty: set both"))
	}
	if configMaps && f.Backend.Type == "local" && f.Backend.Config["path"] == "" {
		mistakes = append(mistakes, errors.New("fleet.backend: a fleet in ConfigMaps requires states that outlive a pod: use type kubernetes, pg, s3 or http"))
	}
	mistakes = append(mistakes, f.Git.Forge.check()...)
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

// FleetPlace returns where the fleet is stored, for messages.
func (c *Config) FleetPlace() string {
	switch at := c.Fleet.ConfigMap; {
	case at != (ConfigMap{}):
		return "ConfigMaps " + at.Namespace + "/" + at.Name
	case c.Fleet.Git.Remote != "":
		return "repository " + c.Fleet.Git.Remote
	}
	return "directory " + c.FleetDir()
}

// SecretFiles returns the files with secrets that the configuration names.
func (c *Config) SecretFiles() []string {
	var files []string
	for i := range c.Clusters {
		files = append(files, c.Clusters[i].TokenSecretFile, c.Clusters[i].PasswordFile)
	}
	files = append(files, c.Fleet.Git.SSHKeyFile, c.History.KeyFile)
	for _, target := range c.Notifications.Targets {
		files = append(files, target.SecretFiles()...)
	}
	return slices.DeleteFunc(files, func(path string) bool { return path == "" })
}

// OpenStore returns the fleet's store, with a history sealed by this installation's key.
// It makes no requests.
func (c *Config) OpenStore(environ []string, cluster Kubeconfig) (*store.Sealed, error) {
	inner, err := c.openStore(environ, cluster)
	if err != nil {
		return nil, err
	}

	// The key of the history is in the configured file; or in the namespace of the fleet's
	// ConfigMaps, readable by everyone who may read Secrets there; or in numaform's own
	// namespace; or in this machine's state directory.
	secret := store.SecretVault{Namespace: cluster.Namespace, Name: historySecret}
	if secret.Namespace == "" && !c.hasHistoryKey() {
		secret.Namespace = PodNamespace(environ)
	}
	if at := c.Fleet.ConfigMap; at != (ConfigMap{}) {
		secret.Namespace = at.Namespace
		secret.Name = at.Name + "-history"
	}
	switch {
	case c.History.KeyFile != "":
		// Other machines may share the file, and it may be read-only: the head is this machine's.
		head, err := c.StatePath("history", "head")
		if err != nil {
			return nil, err
		}
		return store.NewSealed(inner, store.SharedKeyVault{FileVault: store.FileVault(c.History.KeyFile), HeadPath: head}, c.ClusterID), nil
	case secret.Namespace == "":
		path, err := c.StatePath("history", "key")
		if err != nil {
			return nil, err
		}
		return store.NewSealed(inner, store.FileVault(path), c.ClusterID), nil
	}
	if secret.Client, err = cluster.client(); err != nil {
		return nil, err
	}
	return store.NewSealed(inner, secret, c.ClusterID), nil
}

// PodNamespace returns the namespace of numaform's own objects if a command runs in the
// controller's pod, and "" otherwise.
func PodNamespace(environ []string) string {
	if lookup(environ, "KUBERNETES_SERVICE_HOST") == "" {
		return ""
	}
	return lookup(environ, ownNamespace)
}

// CheckpointPlaces returns the places outside the fleet's store that have checkpoints of its
// history: the configured directory and repository, and for a fleet in git that a controller
// changes, a ConfigMap in the controller's namespace. It makes no requests.
func (c *Config) CheckpointPlaces(environ []string, client kubernetes.Interface, namespace string) ([]store.CheckpointPlace, error) {
	var places []store.CheckpointPlace
	if dir := c.History.CheckpointDir; dir != "" {
		places = append(places, store.CheckpointDir(dir))
	}
	if url := c.History.CheckpointRemote; url != "" {
		clone, err := c.StatePath("checkpoints")
		if err != nil {
			return nil, fmt.Errorf("history.checkpoint_remote: %w", err)
		}
		trusted, err := c.Fleet.Git.trusted()
		if err != nil {
			return nil, err
		}
		place, err := store.NewCheckpointRemote(url, clone, c.ClusterID, store.GitAuth{
			SSHKey: c.Fleet.Git.SSHKeyFile, Token: lookup(environ, checkpointToken), CAs: trusted,
		})
		if err != nil {
			return nil, err
		}
		places = append(places, place)
	}
	if c.Fleet.Git.enabled() && client != nil && namespace != "" {
		places = append(places, store.CheckpointConfigMap{Client: client, Namespace: namespace, Name: historySecret + "-checkpoint"})
	}
	return places, nil
}

// Checkpoints returns the signed checkpoints in the configured places outside the fleet's
// store.
func (c *Config) Checkpoints(ctx context.Context, environ []string) ([][]byte, error) {
	places, err := c.CheckpointPlaces(environ, nil, "")
	if err != nil {
		return nil, err
	}
	var checkpoints [][]byte
	for _, place := range places {
		list, err := place.Load(ctx)
		if err != nil {
			return nil, err
		}
		checkpoints = append(checkpoints, list...)
	}
	return checkpoints, nil
}

// hasHistoryKey reports whether the state directory contains a key of the history, as on a
// user's machine, or in a pod that is not the controller's.
func (c *Config) hasHistoryKey() bool {
	path, err := c.StatePath("history", "key")
	if err != nil {
		return false
	}
	_, err = os.Stat(path)
	return err == nil
}

// openStore returns the fleet's store without the seal.
func (c *Config) openStore(environ []string, cluster Kubeconfig) (store.Store, error) {
	git := &c.Fleet.Git
	switch {
	case git.enabled():
		return c.openGit(environ)
	case c.Fleet.ConfigMap != (ConfigMap{}):
		client, err := cluster.client()
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(c.Fleet.Dir, 0o755); err != nil {
			return nil, fmt.Errorf("opening the fleet's ConfigMaps: %w: set fleet.dir to a directory that numaform may write to", err)
		}
		return store.NewConfigMap(client, c.Fleet.ConfigMap.Namespace, c.Fleet.ConfigMap.Name)
	}
	return store.NewDirectory(c.Fleet.Dir), nil
}

// openGit returns the fleet's repository.
func (c *Config) openGit(environ []string) (*store.Git, error) {
	git := &c.Fleet.Git
	clone, err := c.StatePath("git")
	if err != nil {
		return nil, fmt.Errorf("opening the fleet's repository: %w", err)
	}
	trusted, err := git.trusted()
	if err != nil {
		return nil, err
	}
	return store.NewGit(store.GitConfig{
		Clone:  clone,
		Dir:    c.Fleet.Dir,
		Subdir: git.Subdir,
		Remote: git.Remote,
		Branch: git.Branch,
		Review: git.Review,
		Author: store.GitAuthor{Name: git.AuthorName, Email: git.AuthorEmail},
		Auth:   store.GitAuth{Username: git.Username, SSHKey: git.SSHKeyFile, Token: lookup(environ, gitToken), CAs: trusted},
	})
}

// trusted returns the CAs of the system and of ca_file, or nil without ca_file.
func (g *Git) trusted() (*x509.CertPool, error) {
	if g.CAFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(g.CAFile)
	if err != nil {
		return nil, fmt.Errorf("reading fleet.git.ca_file: %w: %s", err, readFix(err, "correct its path, or remove the key"))
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // the system has none
	}
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("reading fleet.git.ca_file: %s contains no certificate in PEM: set it to the CA certificate of the git server", g.CAFile)
	}
	return pool, nil
}

// lookup returns the value of a variable, or "".
func lookup(environ []string, name string) string {
	for _, entry := range slices.Backward(environ) { // the last one wins, as in the shell's env
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// setStateDir sets the default state directory: one per fleet below the user's state
// directory, as in the XDG Base Directory Specification. Without a home directory it
// stays empty, and StatePath returns an error.
func (c *Config) setStateDir(environ []string) {
	if c.StateDir != "" {
		return
	}
	base := lookup(environ, "XDG_STATE_HOME")
	if home := lookup(environ, "HOME"); base == "" && home != "" {
		base = filepath.Join(home, ".local", "state")
	}
	if !filepath.IsAbs(base) {
		return
	}

	// The identity distinguishes this fleet from other fleets of the same user.
	var identity string
	switch {
	case c.Fleet.Git.Remote != "":
		identity = fmt.Sprintf("git %q %q %q", c.Fleet.Git.Remote, c.Fleet.Git.Branch, c.Fleet.Git.Subdir)
	case c.Fleet.ConfigMap != (ConfigMap{}):
		identity = fmt.Sprintf("configmap %q %q", c.Fleet.ConfigMap.Namespace, c.Fleet.ConfigMap.Name)
	default:
		dir, err := filepath.Abs(c.FleetDir())
		if err != nil {
			dir = c.FleetDir()
		}
		identity = fmt.Sprintf("directory %q", dir)
	}
	sum := sha256.Sum256([]byte(identity))
	c.StateDir = filepath.Join(base, "numaform", c.ClusterID+"-"+hex.EncodeToString(sum[:4]))
}

// StatePath returns the path of a file or directory below the state directory.
func (c *Config) StatePath(elements ...string) (string, error) {
	if c.StateDir == "" {
		return "", errors.New("no state directory: set state_dir in numaform.yaml, or set the environment variable HOME")
	}
	dir, err := filepath.Abs(c.StateDir)
	if err != nil {
		return "", fmt.Errorf("finding the state directory %s: %w", c.StateDir, err)
	}
	return filepath.Join(append([]string{dir}, elements...)...), nil
}
