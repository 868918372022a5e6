package operator_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/numaform/numaform/internal/operator"
)

// TestLoginOfTheEngine checks that the engine gets only the selected context of a
// kubeconfig.
func TestLoginOfTheEngine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	const text = `apiVersion: v1
kind: Config
current-context: other
clusters:
- {name: ours, cluster: {server: "https://ours.example:6443", certificate-authority: pki/ca.crt}}
- {name: other, cluster: {server: "https://other.example:6443"}}
users:
- {name: anna, user: {token: secret-of-ours}}
- {name: admin, user: {token: secret-of-other}}
contexts:
- {name: ours, context: {cluster: ours, user: anna}}
- {name: other, context: {cluster: other, user: admin}}
- {name: broken, context: {cluster: gone, user: anna}}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ours := operator.Kubeconfig{Path: path, Context: "ours"}
	for name, tt := range map[string]struct {
		backend string
		environ []string
		cluster operator.Kubeconfig
		server  string
		err     string
	}{
		"selected context":    {backend: "{type: kubernetes}", cluster: ours, server: "https://ours.example:6443"},
		"current context":     {backend: "{type: kubernetes}", cluster: operator.Kubeconfig{Path: path}, server: "https://other.example:6443"},
		"another namespace":   {backend: "{type: kubernetes}", environ: []string{"KUBE_NAMESPACE=x"}, cluster: ours, server: "https://ours.example:6443"},
		"other programs":      {backend: "{type: kubernetes}", environ: []string{"KUBE_EDITOR=vi", "KUBE_PS1_NS_ENABLE=true"}, cluster: ours, server: "https://ours.example:6443"},
		"login in a variable": {backend: "{type: kubernetes}", environ: []string{"KUBE_CONFIG_PATH=/x"}, cluster: ours},
		"login in the config": {backend: "{type: kubernetes, config: {config_path: /x}}", cluster: ours},
		"other backend":       {backend: "{type: pg}", cluster: ours},
		"no such context":     {backend: "{type: kubernetes}", cluster: operator.Kubeconfig{Path: path, Context: "lab"}, err: "correct --kubeconfig or --context"},
		"no such cluster":     {backend: "{type: kubernetes}", cluster: operator.Kubeconfig{Path: path, Context: "broken"}, err: "correct --kubeconfig or --context"},
		"no such file":        {backend: "{type: kubernetes}", cluster: operator.Kubeconfig{Path: path + "x"}, err: "correct --kubeconfig or --context"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, err := operator.Decode([]byte("fleet: {backend: " + tt.backend + "}\n"))
			if err != nil {
				t.Fatal(err)
			}
			login, err := config.BackendLogin(tt.environ, tt.cluster)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if login.Server != tt.server {
				t.Errorf("the engine logs in to %q, want %q", login.Server, tt.server)
			}
			content := string(login.Content)
			if (content == "") != (tt.server == "") {
				t.Errorf("the engine's kubeconfig is %q", content)
			}
			if tt.server == "https://ours.example:6443" {
				if strings.Contains(content, "other") || !strings.Contains(content, "secret-of-ours") || !strings.Contains(content, filepath.Join(dir, "pki/ca.crt")) {
					t.Errorf("the engine gets not only the selected context:\n%s", content)
				}
			}
		})
	}
}

// TestUnreadableSecret checks the fixes for a secret file that this user may not read, and
// for one that does not exist.
func TestUnreadableSecret(t *testing.T) {
	t.Parallel()
	for errno, want := range map[syscall.Errno]string{
		syscall.EACCES: "give the user that runs numaform read access to the file and its directory",
		syscall.ENOENT: "write the token_secret into it, or correct the path",
	} {
		if got := operator.FileFix(&fs.PathError{Op: "open", Path: "token", Err: errno}, "token_secret"); got != want {
			t.Errorf("%v: the fix is %q, want %q", errno, got, want)
		}
	}
}
