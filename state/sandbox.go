package state

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/internal/confine"
)

// If the kernel has Landlock, the engine and the provider can access only the files that
// they need. They can read neither other processes' environments in /proc, nor other files
// with credentials, nor the working directories of other roots. EngineConfig.Helper starts
// them with these restrictions. A download of the provider is not restricted, nor is an
// engine whose files are unknown (sandbox.open).

// systemFiles are the system files that programs need: the programs themselves,
// certificates, name resolution.
var systemFiles = []string{
	"/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/opt", "/sbin", "/snap", "/usr",
	"/dev/random", "/dev/urandom", "/dev/zero", "/sys/kernel/mm/transparent_hugepage",
	"/etc/alternatives", "/etc/ca-certificates", "/etc/gai.conf", "/etc/group", "/etc/host.conf", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf",
	"/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/passwd", "/etc/pki", "/etc/protocols", "/etc/resolv.conf", "/etc/services", "/etc/ssl",
}

// credentialFiles are the files in which a backend's client looks for credentials by
// default, relative to the user's home unless absolute; the clients also store tokens
// there.
var credentialFiles = map[string][]string{
	"azurerm":    {".azure"},
	"gcs":        {".config/gcloud"},
	"kubernetes": {".kube", "/var/run/secrets/kubernetes.io/serviceaccount"},
	"pg":         {".pgpass", ".postgresql", ".pg_service.conf"},
	"s3":         {".aws", "/var/run/secrets/eks.amazonaws.com/serviceaccount"},
}

// otherProgram matches files that make a backend's client run another program for the
// credential. The files that such a program needs are unknown.
var otherProgram = regexp.MustCompile(`(?m)^\s*(?:-\s+)?"?(?:exec"?:|credential_process\s*=)`)

// referred matches the files that a kubeconfig names.
var referred = regexp.MustCompile(`(?m)^\s*"?(?:certificate-authority|client-certificate|client-key|tokenFile)"?:\s*"?([^\s"]+)`)

// sandbox holds the engine's access rules. open is the reason why the engine runs without
// them, or "".
type sandbox struct {
	rules confine.Rules
	open  string
}

// engineRules returns the engine's access rules for a directory with the configuration
// root.
func engineRules(c *Config, env map[string]string, root *configuration) sandbox {
	s := sandbox{rules: confine.Rules{Program: c.Engine.Path, Read: slices.Clone(systemFiles), Write: []string{c.Dir, os.DevNull}}}
	if isScript(c.Engine.Path) {
		s.open = "the engine is a script, so the files that it needs are unknown"
		return s
	}
	s.rules.Read = append(s.rules.Read, certificates(env)...)
	if root.local {
		for _, source := range slices.Sorted(maps.Values(root.calls)) {
			s.rules.Read = append(s.rules.Read, filepath.Join(c.Dir, filepath.FromSlash(source)))
		}
	}
	settings := map[string]string{}
	maps.Copy(settings, root.settings)
	maps.Copy(settings, c.BackendConfig)
	if root.backend == "local" {
		dir := filepath.Dir(inDir(c.Dir, settings["path"]))
		_ = os.MkdirAll(dir, 0o700) // the engine reports the error
		s.rules.Write = append(s.rules.Write, dir)
		return s
	}
	for name, value := range env {
		if backendOfVariable(name) == root.backend {
			settings[name] = value
		}
	}

	// Add the files that the backend's client reads by default and because of its settings.
	at := func(name string) string { return inDir(env["HOME"], strings.TrimPrefix(name, "~/")) }
	defaults := credentialFiles[root.backend]
	if root.backend == "kubernetes" && len(c.Kubeconfig.Content) > 0 {
		// The user's own kubeconfig may also contain logins to other clusters.
		defaults = nil
		s.refer(c.Dir, "the kubeconfig", c.Kubeconfig.Content)
	}
	for _, name := range defaults {
		s.rules.Write = append(s.rules.Write, at(name))
	}
	for _, value := range settings {
		for _, name := range filepath.SplitList(value) {
			if strings.HasPrefix(name, "/") || strings.HasPrefix(name, "~/") {
				s.name(at(name))
			}
		}
	}
	for _, name := range []string{".kube/config", ".aws/config", ".aws/credentials"} {
		if slices.ContainsFunc(defaults, func(dir string) bool { return strings.HasPrefix(name, dir+"/") }) {
			s.name(at(name))
		}
	}
	slices.Sort(s.rules.Read)
	return s
}

// name adds a file that a backend's configuration names, and the files named in it.
func (s *sandbox) name(file string) {
	info, err := os.Stat(file)
	if err != nil || info.IsDir() && file == "/" {
		return
	}
	s.rules.Read = append(s.rules.Read, file)
	if !info.Mode().IsRegular() || info.Size() > 1<<20 {
		return
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return // its reader reports the error
	}
	s.refer(filepath.Dir(file), file, content)
}

// refer adds the files that a backend's configuration in dir names.
func (s *sandbox) refer(dir, name string, content []byte) {
	if otherProgram.Match(content) {
		s.open = fmt.Sprintf("%s runs another program for the credential, and the files that it needs are unknown", name)
	}
	for _, match := range referred.FindAllSubmatch(content, -1) {
		s.rules.Read = append(s.rules.Read, inDir(dir, string(match[1])))
	}
}

// inDir resolves a path relative to a directory.
func inDir(dir, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(dir, name)
}

// providerRules returns the provider's access rules.
func providerRules(program, sockets string, env map[string]string) confine.Rules {
	return confine.Rules{
		Program: program, Read: append(slices.Clone(systemFiles), certificates(env)...), Write: []string{sockets, os.DevNull},
	}
}

// certificates returns the certificate paths in the environment.
func certificates(env map[string]string) []string {
	return append(filepath.SplitList(env["SSL_CERT_DIR"]), filepath.SplitList(env["SSL_CERT_FILE"])...)
}

// isScript reports whether a file is not an ELF binary, or cannot be read.
func isScript(name string) bool {
	file, err := os.Open(name)
	if err != nil {
		return true
	}
	defer file.Close() //nolint:errcheck // it was only read
	magic := make([]byte, 4)
	_, err = io.ReadFull(file, magic)
	return err != nil || !bytes.Equal(magic, []byte("\x7fELF"))
}

// confined returns the environment with the variables that make the helper run a program
// with the rules.
func confined(env map[string]string, rules confine.Rules) map[string]string {
	env = maps.Clone(env)
	name, value := rules.Env()
	env[name] = value
	// The confined program can no longer read its CPU limit.
	env["GOMAXPROCS"] = strconv.Itoa(runtime.GOMAXPROCS(0))
	return env
}

// restrict sets the engine's access rules for the directory's files.
func (w *Workspace) restrict() error {
	if w.config.Engine.Helper == "" {
		return nil
	}
	s := engineRules(&w.config, w.env.engine, w.root)
	s.rules.Open = s.open != ""
	if s.rules.Open && w.unconfined != s.open {
		fmt.Fprintf(w.config.Log, "the engine in %s is not confined: %s\n", w.config.Dir, s.open)
	}
	w.unconfined = s.open
	w.env.engine = confined(w.env.engine, s.rules)
	return w.client.SetEnv(w.env.engine)
}
