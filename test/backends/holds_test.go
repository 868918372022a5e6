package backends_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/state"
)

// strange is a value that neither the engine nor the provider may receive.
const strange = "canary-of-another"

// strangeVariables are variables with credentials that the test adds to a workspace's
// environment, except the variables of its backend.
var strangeVariables = []string{
	"ARM_CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY", "CONSUL_HTTP_TOKEN", "GOOGLE_CREDENTIALS", "KUBE_TOKEN", "PGPASSWORD", "TF_HTTP_PASSWORD",
}

// The environment variables and open files that each process may have. The engine may also
// have the variables of its backend. Go's runtime keeps the files of its control group
// open.
var (
	common   = []string{"CHECKPOINT_DISABLE", "GOGC", "GOMAXPROCS", "HOME", "LANG", "LC_ALL", "NUMAFORM_CLUSTER", "NUMAFORM_RUN", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "USER"}
	ofEngine = regexp.MustCompile(`^TF_(APPEND_USER_AGENT|CLI_CONFIG_FILE|INPUT|IN_AUTOMATION|LOG|LOG_CORE|LOG_PATH|LOG_PROVIDER|REATTACH_PROVIDERS|WORKSPACE|DISABLE_PLUGIN_TLS|SKIP_PROVIDER_VERIFY)$`)
	ofOthers = regexp.MustCompile(`^(PROXMOX_VE_API_TOKEN|PLUGIN_[A-Z_]+|TF_PLUGIN_MAGIC_COOKIE|TF_LOG_SDK|TF_LOG_SDK_PROTO|TF_LOG_PROVIDER_PROXMOX)$`)
	plain    = regexp.MustCompile(`^(pipe:|socket:|anon_inode:|/dev/null$|/sys/fs/cgroup/|/proc/\d+/(cgroup|mountinfo)$)`)
)

// ofBackend matches the environment variables of each backend.
var ofBackend = map[string]*regexp.Regexp{
	"local": regexp.MustCompile(`^$`), "http": regexp.MustCompile(`^TF_HTTP_`), "s3": regexp.MustCompile(`^AWS_`),
	"pg": regexp.MustCompile(`^PG`), "kubernetes": regexp.MustCompile(`^KUBE`),
}

// TestWhatProcessesHold checks, during an apply, that engine and provider have only their
// own credentials and no other files or variables of numaform, confined or not.
func TestWhatProcessesHold(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string, engine *state.Engine) {
		for _, helper := range []string{"", os.Args[0]} {
			r := newRoot(t, newSite(t, kind, false), &state.Engine{Path: engine.Path, Version: engine.Version, Helper: helper}, 1)
			w := r.open(t, here, func(c *state.Config) {
				for _, name := range strangeVariables {
					if !ofBackend[kind].MatchString(name) {
						c.Env[name] = strange
					}
				}
			})
			done, release := r.applyHeld(t, w)
			engines := applying(t, w.Dir())
			if len(engines) != 1 {
				t.Fatalf("engines %v, want one", engines)
			}
			if !slices.Contains(environ(t, engines[0]), "GOGC=100") {
				t.Error("the engine that applies may have as much garbage as one that plans")
			}
			held(t, engines[0], func(name string) bool { return ofEngine.MatchString(name) || ofBackend[kind].MatchString(name) },
				w.Dir()+"/", r.home)
			providers := serving(t, engines[0])
			if len(providers) != 1 {
				t.Fatalf("providers %v, want one", providers)
			}
			held(t, providers[0], ofOthers.MatchString)
			release()
			must(t, <-done)
		}
	})
}

// serving returns the providers of an engine's workspace.
func serving(t *testing.T, engine int) []int {
	t.Helper()
	var mark string
	for _, entry := range environ(t, engine) {
		if strings.HasPrefix(entry, "NUMAFORM_RUN=") {
			mark = entry
		}
	}
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	must(t, err)
	var pids []int
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil || !slices.Contains(strings.Split(string(content), "\x00"), mark) {
			continue // the process ended, or is not the engine's
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/environ", &pid); err != nil {
			t.Fatal(err)
		}
		if pid != engine {
			pids = append(pids, pid)
		}
	}
	return pids
}

func environ(t *testing.T, pid int) []string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	must(t, err)
	return strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00")
}

// held checks that a process has only allowed environment variables and open files.
func held(t *testing.T, pid int, own func(name string) bool, files ...string) {
	t.Helper()
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	must(t, err)
	entries := environ(t, pid)
	for _, entry := range entries {
		name, value, _ := strings.Cut(entry, "=")
		if !slices.Contains(common, name) && !own(name) || strings.Contains(value, strange) {
			t.Errorf("%s has the variable %s", filepath.Base(program), name)
		}
	}
	if len(entries) < len(common)/2 {
		t.Errorf("%s has the environment %v", filepath.Base(program), entries)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	for _, fd := range open {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		if err != nil || plain.MatchString(name) {
			continue // the file was closed
		}
		if !slices.ContainsFunc(files, func(file string) bool { return file != "" && strings.HasPrefix(name, file) }) {
			t.Errorf("%s has %s open", filepath.Base(program), name)
		}
	}
}
