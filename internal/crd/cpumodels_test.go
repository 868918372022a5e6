package crd_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/crd"
	"github.com/numaform/numaform/internal/enginetest"
)

// TestCPUModels checks that a class accepts exactly the CPU models of Proxmox VE that the real
// provider accepts (qemu-server 9.2.6, PVE/QemuServer/CPUConfig.pm).
func TestCPUModels(t *testing.T) {
	models := strings.Fields(`host x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4 kvm32 kvm64 qemu32 qemu64 max
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
		EPYC-Genoa EPYC-Genoa-v2 EPYC-Turin custom-a
		a64fx cortex-a35 cortex-a53 cortex-a55 cortex-a57 cortex-a710 cortex-a72 cortex-a76 neoverse-n1 neoverse-n2 neoverse-v1`)

	var config strings.Builder
	fmt.Fprintf(&config, "terraform {\n  required_providers {\n    proxmox = { source = %q }\n  }\n}\n", enginetest.Provider)
	var rejected []string
	for i, model := range models {
		if crd.Admit(manifest("{template: {name: t}, cpuType: \""+model+"\"}"), &v1alpha1.ProxmoxNodeClass{}) != nil {
			rejected = append(rejected, model)
		}
		fmt.Fprintf(&config, "resource \"proxmox_virtual_environment_vm\" \"m%d\" {\n  node_name = \"a\"\n  cpu {\n    type = %q\n  }\n}\n", i, model)
	}

	engine, dir := enginetest.New(t), t.TempDir()
	enginetest.Write(t, dir, map[string][]byte{"main.tf": []byte(config.String())})
	engine.Run(t, dir, "init", "-no-color", "-input=false")
	out, _ := engine.Try(t, dir, "validate", "-json") // fails, because the provider rejects some
	var result struct {
		Diagnostics []struct{ Summary string }
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	rejection := regexp.MustCompile(`^expected type to be one of .*, got (.+)$`)
	var want []string
	for _, d := range result.Diagnostics {
		if got := rejection.FindStringSubmatch(d.Summary); got != nil {
			want = append(want, got[1])
		}
	}
	slices.Sort(want)
	slices.Sort(rejected)
	if diff := cmp.Diff(want, rejected); diff != "" {
		t.Errorf("rejected models (-provider +class):\n%s", diff)
	}
}
