package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"numaform": main, "kubectl-numaform": main, "ctrl-c": ctrlC,
		// The programs of docs/first-node.md.
		"ssh": ssh, "scp": scp, "pveum": hostProgram("pveum"), "qm": hostProgram("qm"),
	})
}

// TestScripts checks the commands with the scripts testdata/script/*.txtar, each in a
// directory with the files of testdata/fixture and a recorded Proxmox, snapshot.json. There
// is no Proxmox until the script runs proxmox, and no cluster.
func TestScripts(t *testing.T) {
	runScripts(t, "script", map[string]func(*testscript.TestScript, bool, []string){
		"exits": exits, "proxmox": proxmox(testenv.Hosts(t)), "same": same, "replace": replace,
		"valid": valid,
	})
}

// runScripts runs the scripts of a directory of testdata, each beside the files of
// testdata/fixture and a recorded Proxmox, snapshot.json.
func runScripts(t *testing.T, dir string, commands map[string]func(*testscript.TestScript, bool, []string)) {
	t.Helper()
	engine, plugins := testenv.Engine(t), testenv.PluginDir(t)
	runScriptsIn(t, dir, commands, func(env *testscript.Env) {
		env.Setenv("NUMAFORM_ENGINE_BINARY", engine)
		env.Setenv("NUMAFORM_ENGINE_PLUGIN_DIR", plugins)
		// SAVED lets scripts restore NUMAFORM_ENGINE_BINARY.
		env.Setenv("SAVED", engine)
	})
}

// runScriptsIn runs the scripts of a directory of testdata like runScripts, in an
// environment that prepare sets up.
func runScriptsIn(t *testing.T, dir string, commands map[string]func(*testscript.TestScript, bool, []string), prepare func(*testscript.Env)) {
	t.Helper()
	t.Parallel()
	snapshot := topology.Snapshot{
		Regions: []topology.Region{{Name: testenv.Region, Version: "9.0.3", Quorate: true}},
		Hosts:   recordedHosts(t),
	}
	recorded, err := snapshot.Print()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", dir), RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, ".state"))
			prepare(env)
			env.Values[simulated{}] = &simulator{}
			if err := os.WriteFile(filepath.Join(env.WorkDir, "snapshot.json"), recorded, 0o600); err != nil {
				return err
			}
			return os.CopyFS(env.WorkDir, os.DirFS(filepath.Join("testdata", "fixture")))
		},
		Cmds: commands,
	})
}

// recordedHosts returns the hosts in snapshot.json, with running host agents.
func recordedHosts(t *testing.T) []topology.Host {
	hosts, at := testenv.Hosts(t), time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	for i := range hosts {
		hosts[i].ReadAt = at.Add(2 * time.Minute)
		hosts[i].Agent = &topology.Agent{Version: "1.2.3", At: at, Isolation: "enforce", Clusters: []string{"test"}, MaxPinnedPercent: 90}
	}
	return hosts
}

// withAgents returns the config with host agents for the cluster of testdata/fixture.
func withAgents(config pvesim.Config) pvesim.Config {
	return hostagent.On(config, hostagent.Agent{Rules: claim.Rules{Clusters: []string{"test"}}, Isolation: "enforce", Version: "1.2.3"})
}

// withDevices adds two cards in the mapping gpu to the second host, on NUMA nodes 3 and
// 2, which the token may use.
func withDevices(config pvesim.Config) pvesim.Config {
	config.Hosts = slices.Clone(config.Hosts)
	config.Hosts[1].PCIDevices = []topology.PCIDevice{
		{Mapping: "gpu", Path: "0000:81:00.0", NUMANode: 3}, {Mapping: "gpu", Path: "0000:41:00.0", NUMANode: 2},
	}
	config = config.WithToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret)
	config.Roles = append(config.Roles, pvesim.Role{Name: "NumaformDevice", Privileges: []string{"Mapping.Use"}})
	config.ACL = append(config.ACL, pvesim.ACL{Path: "/mapping/pci/gpu", Subject: "numaform@pve", Role: "NumaformDevice"})
	return config
}

// proxmox starts a simulated Proxmox with the recorded hosts, for the rest of the script,
// optionally with host agents, or with host agents and PCI devices: proxmox
// [agents|devices].
func proxmox(hosts []topology.Host) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		config := pvesim.Config{Hosts: hosts}
		if len(args) > 0 {
			config = withAgents(config)
		}
		if slices.Contains(args, "devices") {
			config = withDevices(config)
		}
		server, err := pvesim.New(config)
		ts.Check(err)
		ts.Check(server.Start("127.0.0.1:0"))
		ts.Defer(func() { ts.Check(server.Close()) })
		for name, content := range map[string][]byte{"ca.pem": server.CertPEM(), "token": []byte(pvesim.DefaultTokenSecret)} {
			ts.Check(os.WriteFile(ts.MkAbs(name), content, 0o600))
		}
		ts.Setenv("NUMAFORM_CLUSTERS_0_URL", server.URL())
		ts.Setenv("NUMAFORM_CLUSTERS_0_CA_FILE", ts.MkAbs("ca.pem"))
	}
}

// exits runs numaform and checks its exit code: exits CODE ARG…
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec("numaform", args[1:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("numaform %s: exit code %d, want %d\n%s%s", strings.Join(args[1:], " "), got, want,
			ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// valid validates stdout against the published schema of an output: valid NAME.
func valid(ts *testscript.TestScript, _ bool, args []string) {
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "docs", "schemas", args[0]+".json"))
	ts.Check(err)
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(ts.ReadFile("stdout")))
	ts.Check(err)
	ts.Check(schema.Validate(value))
}

// same checks that two directories contain the same files: same DIR DIR.
func same(ts *testscript.TestScript, _ bool, args []string) {
	first, second := files(ts, args[0]), files(ts, args[1])
	if len(first) == 0 {
		ts.Fatalf("%s contains no file", args[0])
	}
	for name, content := range first {
		if other, ok := second[name]; !ok || other != content {
			ts.Fatalf("%s differs:\n%s\n%s", name, content, other)
		}
	}
	if len(first) != len(second) {
		ts.Fatalf("%d files, and %d", len(first), len(second))
	}
}

func files(ts *testscript.TestScript, dir string) map[string]string {
	found := map[string]string{}
	root := ts.MkAbs(dir)
	ts.Check(filepath.WalkDir(root, func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		found[strings.TrimPrefix(name, root)] = string(content)
		return err
	}))
	return found
}

// replace replaces text in a file: replace FILE OLD NEW.
func replace(ts *testscript.TestScript, _ bool, args []string) {
	before := ts.ReadFile(args[0])
	after := strings.ReplaceAll(before, args[1], args[2])
	if before == after {
		ts.Fatalf("%s does not contain %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(after), 0o600))
}
