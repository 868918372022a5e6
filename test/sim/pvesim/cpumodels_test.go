package pvesim_test

import (
	"slices"
	"testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// withModel adds the custom CPU model "tuned", and makes template 9001 use it.
func withModel(version string) pvesim.Config {
	cfg := cluster()
	cfg.Version, cfg.CPUModels = version, []string{"tuned"}
	cfg.Hosts[1].Templates[0].Options["cpu"] = "custom-tuned"
	return cfg
}

func TestCPUModels(t *testing.T) {
	t.Parallel()
	c := start(t, withModel("9.2"))
	conf := vm100 + "/config"
	check(t, c, []step{
		{"builtin", "PUT", conf, []string{"cpu", "x86-64-v2-AES,flags=+aes"}, 200, "OK"},
		{"host", "PUT", conf, []string{"cpu", "host"}, 200, "OK"},
		{"custom", "PUT", conf, []string{"cpu", "custom-tuned"}, 403, "Permission check failed (/mapping/cpu/tuned, Mapping.Use)"},
		{"create", "POST", "/nodes/pve-1/qemu", []string{"vmid", "150", "cpu", "cputype=custom-tuned"}, 403, "Permission check failed (/mapping/cpu/tuned, Mapping.Use)"},
		{"clone", "POST", "/nodes/pve-2/qemu/9001/clone", []string{"newid", "151"}, 403, "Permission check failed (/mapping/cpu/tuned, Mapping.Use)"},
	})
	for model, want := range map[string]string{
		"host,flags=+aes;-avx": "invalid format - VM-specific CPU flags must be a subset of: " +
			"aes, amd-no-ssb, amd-ssbd, hv-evmcs, hv-tlbflush, ibpb, md-clear, nested-virt, pcid, pdpe1gb, spec-ctrl, ssbd, virt-ssbd\n",
		"custom-gone": "invalid format - Custom cputype 'gone' not found\n",
		"tuned":       "invalid format - Built-in cputype 'tuned' is not defined (missing 'custom-' prefix?)\n",
	} {
		if got := c.call("PUT", conf, "cpu", model); got.status != 400 || got.errors["cpu"] != want {
			t.Errorf("%s: %d %q, want %q", model, got.status, got.errors["cpu"], want)
		}
	}
	check(t, c, []step{{"the model that it has", "PUT", "/nodes/pve-2/qemu/9001/config", []string{"cpu", "custom-tuned,flags=+aes"}, 200, "OK"}})
	check(t, c.root(), []step{{"root", "PUT", conf, []string{"cpu", "custom-tuned"}, 200, "OK"}})
}

// TestCPUModelsBefore checks that an older Proxmox VE requires only Sys.Audit on /nodes,
// which the default token has, to assign a custom CPU model.
func TestCPUModelsBefore(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.1"} {
		check(t, start(t, withModel(version)), []step{
			{"custom", "PUT", vm100 + "/config", []string{"cpu", "custom-tuned"}, 200, "OK"},
			{"clone", "POST", "/nodes/pve-2/qemu/9001/clone", []string{"newid", "151"}, 200, "OK"},
		})
		cfg := withModel(version)
		cfg.ACL = []pvesim.ACL{{Path: "/vms", Subject: "numaform@pve", Role: "PVEVMAdmin"}}
		cfg.Tokens = []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true}}
		check(t, start(t, cfg), []step{{"custom", "PUT", vm100 + "/config", []string{"cpu", "custom-tuned"}, 403, "Permission check failed (/nodes, Sys.Audit)"}})
	}
}

func TestListOfCPUModels(t *testing.T) {
	t.Parallel()
	cfg := withModel("9.2")
	cfg.Tokens = []pvesim.Token{{ID: "numaform@pve!all", Secret: "s", FullPrivileges: true}, {ID: "numaform@pve!none", Secret: "s"}}
	cfg.Roles = []pvesim.Role{{Name: "CPU", Privileges: []string{"Mapping.Use"}}}
	cfg.ACL = []pvesim.ACL{{Path: "/mapping/cpu/tuned", Subject: "numaform@pve", Role: "CPU"}}
	c := start(t, cfg)
	for token, sees := range map[string]bool{"numaform@pve!all=s": true, "numaform@pve!none=s": false} {
		for path, host := range map[string]bool{"": true, "?arch=aarch64": false} {
			var names []string
			for _, model := range c.token(token).call("GET", "/nodes/pve-2/capabilities/qemu/cpu"+path).data.([]any) {
				names = append(names, model.(map[string]any)["name"].(string))
			}
			if slices.Contains(names, "custom-tuned") != sees || slices.Contains(names, "host") != host || slices.Contains(names, "kvm64") != host {
				t.Errorf("%s%s lists %v", token, path, names)
			}
		}
	}
}
