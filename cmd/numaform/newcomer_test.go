package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// TestNewcomer checks, with the scripts testdata/newcomer/*.txtar, that a new user of an
// unprepared Proxmox gets a first node by applying the fixes in messages literally.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	engine, plugins := testenv.Engine(t), testenv.PluginDir(t)
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "newcomer"), RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, ".state"))
			env.Setenv("NUMAFORM_ENGINE_BINARY", engine)
			env.Setenv("NUMAFORM_ENGINE_PLUGIN_DIR", plugins)
			// The host agents have the packaged configuration: they pin for no cluster.
			config := pvesim.Config{Hosts: unprepared(t), Tokens: []pvesim.Token{{ID: "somebody@pve!else", Secret: "s"}}}
			server, err := pvesim.New(hostagent.On(config, hostagent.Agent{}))
			if err != nil {
				return err
			}
			if err := server.Start("127.0.0.1:0"); err != nil {
				return err
			}
			env.Defer(func() { _ = server.Close() })
			env.Values[simulated{}] = &simulator{Server: server}
			env.Setenv("PVE_URL", server.URL())
			return os.WriteFile(filepath.Join(env.WorkDir, "etc-pve-pve-root-ca.pem"), server.CertPEM(), 0o600)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "replace": replace, "shell": shell, "follow": follow, "vms": vms, "breaks": breaks,
			"pinsfor": pinsFor,
		},
	})
}

// simulated is the key of the script's simulator.
type simulated struct{}

// simulator is the script's Proxmox, if it has one.
type simulator struct {
	*pvesim.Server
	// hit is closed when a request is blocked. Closing released unblocks the request.
	hit      <-chan struct{}
	released chan<- struct{}
}

func simulatorOf(ts *testscript.TestScript) *simulator {
	found, ok := ts.Value(simulated{}).(*simulator)
	if !ok {
		ts.Fatalf("this script has no simulator")
	}
	return found
}

// unprepared returns three hosts whose templates cannot be cloned: the first has no guest
// agent, the second has a hookscript, and the third is still a VM.
func unprepared(t *testing.T) []topology.Host {
	hosts := append(testenv.Hosts(t), testenv.Host(t, "pve-3", "nuc-i7-1165g7-4c8t", 9003))
	delete(hosts[0].Templates[0].Options, "agent")
	hosts[1].Templates[0].Options["hookscript"] = "local:snippets/pin.pl"
	hosts[2].Templates[0].Options["template"] = "0"
	hosts[0].Guests = []topology.Guest{{VMID: 2000, Name: "nas", Kind: topology.GuestVM, VCPUs: 2, MemoryMiB: 2048}}
	return hosts
}

func proxmoxOf(ts *testscript.TestScript) *pvesim.Server {
	server := simulatorOf(ts).Server
	if server == nil {
		ts.Fatalf("the script has not started a Proxmox")
	}
	return server
}

// shell runs the lines of a file on a host, and stores their output if OUT is given: shell
// FILE [OUT].
func shell(ts *testscript.TestScript, _ bool, args []string) {
	var printed strings.Builder
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		out, err := proxmoxOf(ts).Shell(line)
		ts.Check(err)
		printed.WriteString(out)
	}
	if len(args) > 1 {
		ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(printed.String()+"\n"), 0o600))
	}
}

var (
	// hostCommand matches a command in a message of doctor.
	hostCommand = regexp.MustCompile(`\b(?:pveum|qm) [a-z][^&;:]*`)
	// quoted matches a command in a sentence, which does not apply in every case.
	quoted = regexp.MustCompile("`[^`]*`")
)

// follow runs on a host the commands that a check in doctor's last output gives as the
// fix: follow CHECK.
func follow(ts *testscript.TestScript, _ bool, args []string) {
	var done []string
	for line := range strings.Lines(ts.ReadFile("stdout")) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[1] != args[0] || (fields[0] != "fail" && fields[0] != "warn") {
			continue
		}
		for _, command := range hostCommand.FindAllString(quoted.ReplaceAllString(line, ""), -1) {
			if command = strings.TrimSpace(command); slices.Contains(done, command) {
				continue
			}
			ts.Logf("on a host: %s", command)
			_, err := proxmoxOf(ts).Shell(command)
			ts.Check(err)
			done = append(done, command)
		}
	}
	if len(done) == 0 {
		ts.Fatalf("no line of %s names a command:\n%s", args[0], ts.ReadFile("stdout"))
	}
}

// pinsFor configures the agents of all hosts to pin VMs of a cluster: pinsfor CLUSTERID.
func pinsFor(ts *testscript.TestScript, _ bool, args []string) {
	for _, host := range []string{"pve-1", "pve-2", "pve-3"} {
		ts.Check(hostagent.Set(proxmoxOf(ts), host, hostagent.Agent{Rules: claim.Rules{Clusters: args}}))
	}
}

// breaks makes the next clone fail: breaks.
func breaks(ts *testscript.TestScript, _ bool, _ []string) {
	proxmoxOf(ts).AddFault(pvesim.Fault{Method: "POST", Path: `/clone$`, Times: 1, Status: 500, Reason: "storage is on fire"})
}

// vms checks that numaform's VMs have exactly these names, sorted: vms NAME…
func vms(ts *testscript.TestScript, _ bool, args []string) {
	var have []string
	for _, guest := range proxmoxOf(ts).Guests() {
		if strings.Contains(guest.Config["description"], "numaform/1 ") {
			have = append(have, guest.Config["name"])
		}
	}
	slices.Sort(have)
	if !slices.Equal(have, args) {
		ts.Fatalf("VMs %v, want %v", have, args)
	}
}
