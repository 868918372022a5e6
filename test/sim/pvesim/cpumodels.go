package pvesim

import (
	"slices"
	"strings"
)

// builtinCPUModels are the CPU models of every Proxmox VE, by architecture, except "host"
// (qemu-server 9.2.6, PVE/QemuServer/CPUConfig.pm:65-86, 117-245).
var builtinCPUModels = map[string][]string{
	"x86_64": strings.Fields(`x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4 kvm32 kvm64 qemu32 qemu64 max
		486 pentium pentium2 pentium3 coreduo core2duo Conroe Penryn Nehalem Nehalem-IBRS Westmere Westmere-IBRS
		SandyBridge SandyBridge-IBRS IvyBridge IvyBridge-IBRS Haswell Haswell-IBRS Haswell-noTSX Haswell-noTSX-IBRS
		Broadwell Broadwell-IBRS Broadwell-noTSX Broadwell-noTSX-IBRS Skylake-Client Skylake-Client-IBRS
		Skylake-Client-noTSX-IBRS Skylake-Client-v4 Skylake-Server Skylake-Server-IBRS Skylake-Server-noTSX-IBRS
		Skylake-Server-v4 Skylake-Server-v5 Cascadelake-Server Cascadelake-Server-v2 Cascadelake-Server-noTSX
		Cascadelake-Server-v4 Cascadelake-Server-v5 Cooperlake Cooperlake-v2 KnightsMill Icelake-Client
		Icelake-Client-noTSX Icelake-Server Icelake-Server-noTSX Icelake-Server-v3 Icelake-Server-v4 Icelake-Server-v5
		Icelake-Server-v6 Icelake-Server-v7 SapphireRapids SapphireRapids-v2 SapphireRapids-v3 SapphireRapids-v4
		GraniteRapids GraniteRapids-v2 GraniteRapids-v3 SierraForest SierraForest-v2 SierraForest-v3 ClearwaterForest
		athlon phenom Opteron_G1 Opteron_G2 Opteron_G3 Opteron_G4 Opteron_G5 EPYC EPYC-IBPB EPYC-v3 EPYC-v4 EPYC-v5
		EPYC-Rome EPYC-Rome-v2 EPYC-Rome-v3 EPYC-Rome-v4 EPYC-Rome-v5 EPYC-Milan EPYC-Milan-v2 EPYC-Milan-v3
		EPYC-Genoa EPYC-Genoa-v2 EPYC-Turin`),
	"aarch64": strings.Fields(`max a64fx cortex-a35 cortex-a53 cortex-a55 cortex-a57 cortex-a710 cortex-a72 cortex-a76
		neoverse-n1 neoverse-n2 neoverse-v1`),
}

// listCPUModels handles GET …/capabilities/qemu/cpu. Custom models are listed for users
// with a privilege on the model, or with Sys.Audit on /nodes (qemu-server 9.2.6,
// PVE/API2/Qemu/CPU.pm:58-84).
func listCPUModels(r *request) (any, error) {
	own := "x86_64"
	if r.at.machine.Arch == "arm64" {
		own = "aarch64"
	}
	arch := r.p["arch"]
	if arch == "" {
		arch = own
	}
	result := []any{}
	for _, name := range builtinCPUModels[arch] {
		result = append(result, map[string]any{"name": name, "custom": 0, "vendor": "default"})
	}
	if arch == own {
		result = append(result, map[string]any{"name": "host", "custom": 0, "vendor": "default"})
	}
	for _, name := range r.s.cfg.CPUModels {
		if r.s.access.check(r.who, "/nodes", "Sys.Audit") == nil ||
			r.s.access.checkAny(r.who, "/mapping/cpu/"+name, "Mapping.Audit", "Mapping.Use", "Mapping.Modify") == nil {
			result = append(result, map[string]any{"name": "custom-" + name, "custom": 1, "vendor": "default"})
		}
	}
	return result, nil
}

// vmFlags are the CPU flags that a VM can have; custom models can have any (qemu-server 9.2,
// PVE/QemuServer/CPUFlags.pm).
var vmFlags = strings.Fields("aes amd-no-ssb amd-ssbd hv-evmcs hv-tlbflush ibpb md-clear nested-virt pcid pdpe1gb spec-ctrl ssbd virt-ssbd")

// checkCPUType refuses a CPU model that does not exist (CPUConfig.pm:476-503), and a flag that
// a VM cannot have.
func (r *request) checkCPUType(text string) *apiError {
	props, _ := parsePropertyString(propertyFormats()["pve-vm-cpu-conf"], text)
	for flag := range strings.SplitSeq(props["flags"], ";") {
		if flag != "" && !slices.Contains(vmFlags, flag[1:]) {
			return oneParamError("cpu", "invalid format - VM-specific CPU flags must be a subset of: %s\n", strings.Join(vmFlags, ", "))
		}
	}
	model := cpuModel(text)
	name, custom := strings.CutPrefix(model, "custom-")
	switch {
	case custom && !slices.Contains(r.s.cfg.CPUModels, name):
		return oneParamError("cpu", "invalid format - Custom cputype '%s' not found\n", name)
	case custom, model == "", model == "host":
		return nil
	}
	for _, models := range builtinCPUModels {
		if slices.Contains(models, model) {
			return nil
		}
	}
	return oneParamError("cpu", "invalid format - Built-in cputype '%s' is not defined (missing 'custom-' prefix?)\n", model)
}

// mayUseCPU requires the privilege to assign a custom CPU model to a guest that does not
// have it yet. It is Mapping.Use since qemu-server 9.1.13, and for clones since 9.1.15;
// before, it was Sys.Audit on /nodes (PVE/API2/Qemu.pm:738-757, 1365, 2214, 4496;
// debian/changelog).
func (r *request) mayUseCPU(text, old string) *apiError {
	name, custom := strings.CutPrefix(cpuModel(text), "custom-")
	if !custom || cpuModel(text) == cpuModel(old) {
		return nil
	}
	if r.s.cfg.from92() { // privileges for custom CPU models exist since qemu-server 9.1.13
		return r.s.access.check(r.who, "/mapping/cpu/"+name, "Mapping.Use")
	}
	return r.s.access.check(r.who, "/nodes", "Sys.Audit")
}

// cpuModel returns the model in a guest's option cpu.
func cpuModel(text string) string {
	props, _ := parsePropertyString(propertyFormats()["pve-vm-cpu-conf"], text)
	return props["cputype"]
}
