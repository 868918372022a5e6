package state

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
)

// runVariable marks the engine and its providers as started by a workspace, so that a
// provider can be found after its engine was killed.
const runVariable = "NUMAFORM_RUN"

// The garbage collection of the engine and the provider, which live for seconds, as values
// of GOGC: more collections cost CPU time, and fewer cost memory without saving CPU time.
// Most of an apply waits for Proxmox, and more engines apply than plan at once, so an apply
// uses less memory.
const (
	gogc      = "200"
	gogcApply = "100"
)

// clusterVariable identifies, by a hash, the Kubernetes cluster whose states an engine can
// reach. The provider gets this variable too, because a provider can outlive a killed
// engine.
const clusterVariable = "NUMAFORM_CLUSTER"

// basics are the variables that the engine, the provider and a download inherit from this
// process, because any program may need them. Of the other variables, the engine inherits
// only its backend's and TF_ENCRYPTION, and a download only those for registries.
var basics = []string{
	"HOME", "LANG", "LC_ALL", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "USER",
	"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
}

// backendVariables maps each backend to the prefixes of its own variables. PostgreSQL's
// prefixes are longer than PG, because a name like PGP_PASSPHRASE belongs to another
// program.
var backendVariables = map[string][]string{
	"azurerm": {"ARM_"}, "consul": {"CONSUL_"}, "gcs": {"GOOGLE_"}, "http": {"TF_HTTP_"},
	"kubernetes": {"KUBE_", "KUBERNETES_SERVICE_"}, "s3": {"AWS_"},
	"cos": {"TENCENTCLOUD_"}, "oss": {"ALICLOUD_", "ALIBABA_CLOUD_"},
	"pg": {
		"PG_", "PGAPPNAME", "PGCHANNELBINDING", "PGCLIENTENCODING", "PGCONNECT_TIMEOUT", "PGDATABASE", "PGDATESTYLE", "PGGSS", "PGHOST", "PGKRB",
		"PGOPTIONS", "PGPASS", "PGPORT", "PGREALM", "PGREQUIRE", "PGSERVICE", "PGSSL", "PGTARGETSESSIONATTRS", "PGTZ", "PGUSER",
	},
}

// loginVariables are the variables with which the kubernetes backend finds the API server
// and logs in. Other variables with the same prefix, such as KUBE_EDITOR, do not affect
// this.
var loginVariables = []string{
	"KUBE_CONFIG_PATH", "KUBE_CONFIG_PATHS", "KUBE_CTX", "KUBE_CTX_AUTH_INFO", "KUBE_CTX_CLUSTER",
	"KUBE_HOST", "KUBE_TOKEN", "KUBE_USER", "KUBE_PASSWORD", "KUBE_CLIENT_CERT_DATA", "KUBE_CLIENT_KEY_DATA",
	"KUBE_CLUSTER_CA_CERT_DATA", "KUBE_IN_CLUSTER_CONFIG", "KUBE_INSECURE", "KUBE_TLS_SERVER_NAME", "KUBE_PROXY_URL",
}

// SelectsCluster reports whether the kubernetes backend reads a variable to find the API
// server or to log in.
func SelectsCluster(variable string) bool { return slices.Contains(loginVariables, variable) }

// registryVariables is the prefix of the variables that log the engine in to registries.
// Only a download needs them.
const registryVariables = "TF_TOKEN_"

// encryptionVariable contains OpenTofu's encryption configuration, including keys.
const encryptionVariable = "TF_ENCRYPTION"

// checkEncryption returns an error if only one of Config.Encryption and the variable
// TF_ENCRYPTION is set, or if Config.Encryption is set and the engine is not OpenTofu. A
// state that is encrypted only because of the variable would be unreadable where the
// variable is not set.
func checkEncryption(c *Config, given bool) error {
	switch {
	case c.Encryption && !strings.Contains(c.Engine.Name(), "tofu"):
		return fmt.Errorf("state encryption requires OpenTofu, but the engine is %s: set engine.binary to tofu, or remove encryption from fleet.backend", c.Engine)
	case c.Encryption && !given:
		return errors.New("fleet.backend enables state encryption, but the variable " + encryptionVariable +
			" is not set: set it to OpenTofu's encryption configuration, including the key, or remove encryption from fleet.backend")
	case !c.Encryption && given:
		return errors.New("the variable " + encryptionVariable + " is set, but fleet.backend does not enable state encryption: " +
			"set encryption in fleet.backend, or unset the variable")
	}
	return nil
}

// environments are the environments of a workspace's processes. No process gets a
// variable that only another one needs.
type environments struct {
	engine, provider, download map[string]string
	// cluster are the variables, as name=value, that identify the Kubernetes cluster that
	// stores a state.
	cluster []string
}

// canonicalServer returns an API server's URL in a canonical form, or unchanged if it
// cannot be parsed. Without it, strangers would miss the engines of another numaform
// process that is configured with another form of the same URL.
func canonicalServer(server string) string {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return server
	}
	scheme, port := strings.ToLower(u.Scheme), u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[scheme]
	}
	return scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port) + strings.TrimRight(u.Path, "/")
}

// environmentsOf divides this process's environment and the caller's additions: the
// engine gets its backend's variables, the provider gets the other additions, which log
// it in to Proxmox, and a download of the provider gets the variables for registries.
func environmentsOf(own []string, c *Config, backend, mark string) environments {
	all := variablesOf(own)
	plain := map[string]string{
		"GOGC": gogc, "CHECKPOINT_DISABLE": "1", runVariable: mark,
	}
	for _, name := range basics {
		if value, ok := all[name]; ok {
			plain[name] = value
		}
	}
	maps.Copy(all, c.Env)
	var cluster []string
	for name, value := range all {
		if name == "KUBE_NAMESPACE" || SelectsCluster(name) {
			cluster = append(cluster, name+"="+value)
		}
	}
	slices.Sort(cluster)
	identity := cluster
	if c.Kubeconfig.Server != "" {
		// The server identifies the cluster. The path of the kubeconfig does not, because
		// it may differ between two processes that use the same cluster.
		identity = append(slices.Clone(cluster), canonicalServer(c.Kubeconfig.Server))
	}
	plain[clusterVariable] = hashLines(identity)
	e := environments{cluster: cluster, engine: maps.Clone(plain), provider: maps.Clone(plain), download: maps.Clone(plain)}
	// A user's CLI configuration is for downloads, and the engine downloads nothing.
	e.engine["TF_CLI_CONFIG_FILE"] = os.DevNull
	for name, value := range all {
		if kind := backendOfVariable(name); kind != "" && kind == backend || name == encryptionVariable && c.Encryption {
			e.engine[name] = value
		}
		if strings.HasPrefix(name, registryVariables) {
			e.download[name] = value
		}
	}
	for name, value := range c.Env {
		if backendOfVariable(name) == "" && !strings.HasPrefix(name, "TF_") {
			e.provider[name] = value
		}
	}
	return e
}

// variablesOf returns an environment as a map.
func variablesOf(environ []string) map[string]string {
	all := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		all[name] = value
	}
	return all
}

// backendOfVariable returns the backend that a variable configures, or "".
func backendOfVariable(name string) string {
	for kind, prefixes := range backendVariables {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return kind
		}
	}
	return ""
}

// secretName matches the names of variables whose values must not be shown.
var secretName = regexp.MustCompile(`(?i)TOKEN|PASSWORD|PASSWD|SECRET|TICKET|PRIVATE|ACCESS_KEY|CONN_STR|CREDENTIALS|ENCRYPTION`)

// redacted replaces a secret.
const redacted = "[redacted]"

// redactorOf returns a replacer of the secret variables of all backends, of registries, of
// encryption and of Config.Env.
func redactorOf(own []string, c *Config) *strings.Replacer {
	secrets := map[string]string{}
	for name, value := range variablesOf(own) {
		if backendOfVariable(name) != "" || name == encryptionVariable || strings.HasPrefix(name, registryVariables) {
			secrets[name] = value
		}
	}
	maps.Copy(secrets, c.Env)
	return newRedactor(secrets)
}

// newRedactor returns a replacer of values, of at least 6 characters, of variables with
// secret names. If a value has the form "name=secret", it also hides the part after the
// equals sign; if the value is a connection string, it also hides the password.
func newRedactor(env map[string]string) *strings.Replacer {
	var secrets []string
	for name, value := range env {
		if !secretName.MatchString(name) {
			continue
		}
		_, tail, _ := strings.Cut(value, "=")
		candidates := []string{value, tail}
		for _, match := range passwordIn.FindAllStringSubmatch(value, -1) {
			candidates = append(candidates, match[1]+match[2])
		}
		for _, s := range candidates {
			if len(s) >= 6 {
				secrets = append(secrets, s)
			}
		}
	}
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	pairs := make([]string, 0, 2*len(secrets))
	for _, s := range secrets {
		pairs = append(pairs, s, redacted)
	}
	return strings.NewReplacer(pairs...)
}

// passwordIn matches the password of a connection string.
var passwordIn = regexp.MustCompile(`://[^/@\s]*?:([^@\s]+)@|password\s*=\s*'?((?:[^'\\\s]|\\.)+)`)

// redactingWriter removes secrets from the engine's output, which arrives in whole lines.
type redactingWriter struct {
	hidden *strings.Replacer
	to     io.Writer
}

// Write implements io.Writer.
func (w redactingWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, w.hidden.Replace(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
