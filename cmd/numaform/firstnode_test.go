package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// mostCommands is the maximum number of commands on docs/first-node.md.
const mostCommands = 10

// TestFirstNode checks that the commands of docs/first-node.md and docs/tutorial.md create a
// VM, and leave nothing in Proxmox except, on the former page, the template. The test runs
// them on a simulated Proxmox, whose hosts it reaches with its own versions of ssh and scp.
func TestFirstNode(t *testing.T) {
	t.Parallel()
	for _, page := range []struct {
		name, dir   string
		hosts, most int
	}{
		{name: "first-node.md", dir: "first-node", hosts: 1, most: mostCommands},
		{name: "tutorial.md", dir: "numaform/tutorial", hosts: 3, most: 20},
	} {
		t.Run(page.name, func(t *testing.T) {
			t.Parallel()
			root, err := filepath.Abs(filepath.Join("..", ".."))
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(root, "docs", page.name))
			if err != nil {
				t.Fatal(err)
			}
			commands := shellCommands(string(text))
			if len(commands) == 0 || len(commands) > page.most {
				t.Fatalf("the page has %d commands, want 1 to %d", len(commands), page.most)
			}
			runPage(t, newProvedHosts(t, root, page.hosts), page.dir, commands)
		})
	}
}

// runPage runs the commands of a page, which work in the directory dir of the checkout.
func runPage(t *testing.T, p *provedHost, dir string, commands []string) {
	t.Helper()
	before := p.inventory(t)
	created := false
	for _, command := range commands {
		out := p.run(t, command)
		switch {
		case strings.HasPrefix(command, "numaform init "):
			// Proxmox shows the secret only once: a repetition must not overwrite it.
			secret := p.read(t, dir+"/token")
			if out := p.run(t, command); !strings.Contains(out, "already exists") || secret == "" || p.read(t, dir+"/token") != secret {
				t.Fatalf("%s, repeated, lost the token:\n%s", command, out)
			}
		case strings.HasPrefix(command, "numaform apply "):
			created = true
			if vms := p.vms(); len(vms) != 1 || !vms[0].Running {
				t.Fatalf("%s created %v, want one running VM:\n%s", command, vms, out)
			}
		case strings.HasPrefix(command, "numaform undo "):
			if vms := p.vms(); len(vms) > 0 {
				t.Fatalf("%s left %v:\n%s", command, vms, out)
			}
		}
	}
	if !created {
		t.Error("no command created a VM")
	}
	if diff := cmp.Diff(before, p.inventory(t)); diff != "" {
		t.Errorf("the commands left something behind in Proxmox (-before +after):\n%s", diff)
	}
}

// TestGoVersion checks that the pages for new users name the required version of Go.
func TestGoVersion(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	module, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(module))[1]
	for _, name := range []string{"README.md", "docs/first-node.md", "docs/tutorial.md"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "Go "+version+" or later") {
			t.Errorf("%s does not say that numaform needs Go %s or later", name, version)
		}
	}
}

// TestReadmeIsShort checks that the README is short, and that its first lines name the
// program, its limits and the first commands.
func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if len(lines) > 150 {
		t.Errorf("README.md has %d lines, want at most 150", len(lines))
	}
	head := strings.Join(lines[:40], "\n")
	for _, part := range []string{"node autoscaler for Proxmox VE", "(#when-not-to-use-it)", "make demo", "(docs/first-node.md)"} {
		if !strings.Contains(head, part) {
			t.Errorf("the first 40 lines of README.md lack %q", part)
		}
	}
}

// shellCommands returns the commands in the sh blocks of a page.
func shellCommands(page string) []string {
	var commands []string
	inside := false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside && line != "" && !strings.HasPrefix(line, "#"):
			commands = append(commands, line)
		}
	}
	return commands
}

// provedHost is a simulated Proxmox without a template, and a machine of a user who reaches
// its hosts with ssh.
type provedHost struct {
	*pvesim.Server
	dir   string
	env   []string
	hosts []topology.Host

	// mu guards template, the name of the template that is being created.
	mu       sync.Mutex
	template string
}

func newProvedHosts(t *testing.T, root string, count int) *provedHost {
	t.Helper()
	hosts := append(testenv.Hosts(t), testenv.Host(t, "pve-3", "nuc-i7-1165g7-4c8t", 9003))[:count]
	for i := range hosts {
		// The VM exists from the start, because the simulator does not build images.
		hosts[i].Templates[0].Name = "unused"
		hosts[i].Templates[0].Options["template"] = "0"
	}
	server := testenv.Proxmox(t, func(config *pvesim.Config) {
		config.Hosts = hosts
		config.Tokens = []pvesim.Token{{ID: "other@pve!x", Secret: "s"}} // not numaform's
	})
	p := &provedHost{Server: server, dir: t.TempDir(), hosts: hosts}
	shell := httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(shell.Close)

	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"host/etc/pve/pve-root-ca.pem": string(server.CertPEM()),
		"hostbin/apt-get":              "#!/bin/sh\n",
		"hostbin/virt-customize":       "#!/bin/sh\n",
		"hostbin/curl":                 "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\necho image >\"$2\"\n",
		// Building numaform again would take minutes: the program is in PATH.
		"bin/make":     "#!/bin/sh\nexec grep -q \"^$1:\" " + filepath.Join(root, "Makefile") + "\n",
		"bin/git":      "#!/bin/sh\n[ \"$1\" = clone ] || exec " + git + " \"$@\"\nmkdir numaform && cp -R ../checkout/examples numaform/\n",
		"state":        "",
		"host/root/.x": "",
	}
	script := filepath.Join("examples", "template", "make-template.sh")
	text, err := os.ReadFile(filepath.Join(root, script))
	if err != nil {
		t.Fatal(err)
	}
	files[filepath.Join("checkout", script)] = string(text)
	for name, content := range files {
		path := filepath.Join(p.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	p.env = append(
		testenv.CleanEnv(),
		"PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH"),
		"HOME="+p.dir, "STATE="+filepath.Join(p.dir, "state"),
		"HOST_SHELL="+shell.URL, "HOST_DIR="+filepath.Join(p.dir, "host"), "HOST_BIN="+filepath.Join(p.dir, "hostbin"),
		"IMAGES="+filepath.Join(p.dir, "images"),
		"NUMAFORM_CLUSTERS_0_URL="+server.URL(),
		"NUMAFORM_ENGINE_BINARY="+testenv.Engine(t), "NUMAFORM_ENGINE_PLUGIN_DIR="+testenv.PluginDir(t),
	)
	return p
}

// run runs a command in the user's shell and returns its output. The directory, the umask
// and PATH remain for the next command. It adds --auto-approve to numaform apply and numaform
// undo, which would otherwise ask for confirmation.
func (p *provedHost) run(t *testing.T, command string) string {
	t.Helper()
	typed := command
	if strings.HasPrefix(command, "numaform apply ") || strings.HasPrefix(command, "numaform undo ") {
		typed += " --auto-approve"
	}
	shell := exec.CommandContext(t.Context(), "sh", "-euc", `. "$STATE"
`+typed+`
printf 'cd "%s"\numask %s\nPATH="%s"\n' "$PWD" "$(umask)" "$PATH" >"$STATE"`)
	shell.Dir = filepath.Join(p.dir, "checkout")
	shell.Env = p.env
	out, err := shell.CombinedOutput()
	t.Logf("$ %s\n%s", command, out)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return string(out)
}

// read returns the content of a file in the user's checkout.
func (p *provedHost) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "checkout", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// vms returns the VMs with numaform's marker.
func (p *provedHost) vms() []pvesim.GuestState {
	return slices.DeleteFunc(p.Guests(), func(g pvesim.GuestState) bool {
		return !strings.Contains(g.Config["description"], "numaform/1 ")
	})
}

// inventory returns everything in Proxmox that the commands may create, without the
// template.
func (p *provedHost) inventory(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, path := range []string{"/access/users", "/access/roles", "/access/acl", "/pools"} {
		data, err := p.Pvesh("get", path)
		if err != nil {
			t.Fatal(err)
		}
		found[path] = string(data)
	}
	templates := map[string]bool{}
	for _, host := range p.hosts {
		templates[strconv.Itoa(host.Templates[0].VMID)] = true
	}
	for _, guest := range p.Guests() {
		if id := strconv.Itoa(guest.VMID); !templates[id] {
			found["guest "+id] = guest.Raw
		}
	}
	for _, host := range p.hosts {
		for _, volume := range p.Volumes(string(host.Name)) {
			if !slices.ContainsFunc(strings.Split(volume, "-"), func(word string) bool { return templates[word] }) {
				found[string(host.Name)+" "+volume] = "exists"
			}
		}
	}
	return found
}

// serve runs a command of the host for hostProgram.
func (p *provedHost) serve(w http.ResponseWriter, r *http.Request) {
	var words []string
	if err := json.NewDecoder(r.Body).Decode(&words); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, err := p.execute(words)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, out)
}

func (p *provedHost) execute(words []string) (string, error) {
	if words[0] == "qm" && words[1] != "destroy" {
		return "", p.makeTemplate(words[1], words[2], words[3:])
	}
	for i, word := range words {
		if strings.Contains(word, " ") {
			words[i] = `"` + word + `"`
		}
	}
	out, err := p.Shell(strings.Join(words, " "))
	if out != "" {
		out += "\n"
	}
	return out, err
}

// makeTemplate simulates a qm command of make-template.sh: create stores the name, template
// creates the finished template, and set has no effect.
func (p *provedHost) makeTemplate(command, vmid string, options []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case command == "config":
		return errors.New("the VM does not exist")
	case command == "create":
		p.template = options[slices.Index(options, "--name")+1]
	case p.template == "":
		return fmt.Errorf("qm %s before qm create", command)
	case command == "template":
		_, err := p.Shell(fmt.Sprintf("qm set %s --name %s", vmid, p.template))
		if err == nil {
			_, err = p.Shell("qm template " + vmid)
		}
		return err
	}
	return nil
}

// hostProgram returns the main function of a program of a Proxmox host. It sends its
// arguments to the test, which runs the command.
func hostProgram(name string) func() {
	return func() {
		words, err := json.Marshal(append([]string{name}, os.Args[1:]...))
		if err != nil {
			fail(err)
		}
		response, err := http.Post(os.Getenv("HOST_SHELL"), "application/json", bytes.NewReader(words)) //nolint:noctx // the test's own server
		if err != nil {
			fail(err)
		}
		defer response.Body.Close() //nolint:errcheck // only read
		if response.StatusCode != http.StatusOK {
			_, _ = io.Copy(os.Stderr, response.Body)
			os.Exit(1) //nolint:gocritic // the process ends
		}
		_, _ = io.Copy(os.Stdout, response.Body)
	}
}

// ssh runs a command with the programs of a Proxmox host.
func ssh() {
	command := exec.Command("sh", "-c", strings.Join(os.Args[2:], " "))
	command.Dir = filepath.Join(os.Getenv("HOST_DIR"), "root")
	command.Env = append(os.Environ(), "PATH="+os.Getenv("HOST_BIN")+":"+os.Getenv("PATH"))
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		fail(err)
	}
}

// scp copies a file from or to a Proxmox host.
func scp() {
	var paths []string
	for _, arg := range os.Args[1:] {
		if host, path, remote := strings.Cut(arg, ":"); remote && strings.HasPrefix(host, "root@") {
			if !filepath.IsAbs(path) {
				path = filepath.Join("/root", path)
			}
			arg = filepath.Join(os.Getenv("HOST_DIR"), path)
		}
		paths = append(paths, arg)
	}
	if out, err := exec.Command("cp", paths...).CombinedOutput(); err != nil {
		fail(fmt.Errorf("%w: %s", err, out))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
