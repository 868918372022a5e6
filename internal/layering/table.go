package layering

import "path"

// Module is numaform's import path.
const Module = "github.com/numaform/numaform"

// Row is the entry of a package, or of several, in the architecture.
type Row struct {
	// Package is the directory below the module root, or a pattern of path.Match: "*"
	// matches one path element.
	Package string
	// Floor is the layer of the package, which imports only packages of lower floors.
	Floor int
	// Pure packages compute results from their arguments only.
	Pure bool
	// Support packages serve tests and the demo. Only tests, programs and other support
	// packages import them.
	Support bool
	// Without lists import path prefixes that the package must not import, directly or
	// through other packages of the module.
	Without []string
}

// Programs is the floor of main packages and of end-to-end tests. They may use support
// packages.
const Programs = 12

// Table returns the floors of numaform's packages, lowest first.
func Table() []Row {
	return []Row{
		{Package: "api/v1alpha1", Floor: 0},
		{Package: "charts", Floor: 0, Pure: true},
		{Package: "examples", Floor: 0, Support: true},
		{Package: "internal/confine", Floor: 0},
		{Package: "internal/enginetest", Floor: 0, Support: true},
		{Package: "internal/logkey", Floor: 0, Pure: true},
		{Package: "internal/notify", Floor: 0},
		{Package: "internal/plainyaml", Floor: 0, Pure: true},
		{Package: "internal/redact", Floor: 0},
		{Package: "internal/scratch", Floor: 0},
		{Package: "internal/shell", Floor: 0, Pure: true},
		{Package: "internal/simprogram", Floor: 0, Support: true},
		{Package: "internal/translog", Floor: 0},
		{Package: "internal/workdir", Floor: 0},
		{Package: "internal/wrap", Floor: 0, Pure: true},
		{Package: "modules", Floor: 0, Pure: true},
		{Package: "topology", Floor: 0, Pure: true},

		{Package: "fleet", Floor: 1, Pure: true},
		{Package: "internal/crd", Floor: 1},
		{Package: "internal/freeze", Floor: 1},
		{Package: "internal/prtext", Floor: 1},
		{Package: "internal/signature", Floor: 1},
		{Package: "internal/statesim", Floor: 1, Support: true},
		{Package: "internal/sysfs", Floor: 1},
		{Package: "internal/term", Floor: 1},
		{Package: "internal/tracing", Floor: 1},
		{Package: "topology/machines", Floor: 1, Support: true},

		{Package: "generator", Floor: 2, Pure: true},
		{Package: "internal/agent/cgroup", Floor: 2},
		{Package: "internal/agent/claim", Floor: 2, Pure: true},
		{Package: "internal/agent/cpufreq", Floor: 2},
		{Package: "internal/agent/irq", Floor: 2},
		{Package: "internal/agent/qemu", Floor: 2},
		{Package: "internal/bootstrap", Floor: 2, Pure: true},
		{Package: "internal/cpumap", Floor: 2, Pure: true},
		{Package: "internal/ipam", Floor: 2, Pure: true},
		{Package: "planner", Floor: 2, Pure: true},
		{Package: "state/guard", Floor: 2, Pure: true},
		{Package: "test/startcheck", Floor: 2, Support: true},

		{Package: "internal/agent", Floor: 3},
		{Package: "internal/agent/agenttest", Floor: 3, Support: true},
		{Package: "internal/audit", Floor: 3},
		{Package: "internal/control", Floor: 3},
		{Package: "internal/convert", Floor: 3, Pure: true},
		{Package: "internal/forge", Floor: 3},
		{Package: "internal/jointoken", Floor: 3},
		{Package: "internal/proxmox", Floor: 3},
		{Package: "internal/pvesim", Floor: 3, Support: true},
		{Package: "state", Floor: 3},

		{Package: "internal/conformance", Floor: 4},
		{Package: "internal/fleetsim", Floor: 4, Support: true},
		{Package: "internal/forge/forgetest", Floor: 4, Support: true},
		{Package: "internal/guestsim", Floor: 4, Support: true},
		{Package: "internal/hostagent", Floor: 4, Support: true},
		{Package: "internal/scheduling", Floor: 4},
		{Package: "internal/store", Floor: 4},

		{Package: "internal/backup", Floor: 5},
		{Package: "internal/controllers/event", Floor: 5},
		{Package: "internal/scaler", Floor: 5},

		{Package: "internal/adopt", Floor: 6},
		{Package: "internal/approval", Floor: 6},
		{Package: "internal/cloudprovider", Floor: 6},
		{Package: "internal/controllers/*", Floor: 6},
		{Package: "internal/doctor", Floor: 6},
		{Package: "internal/review", Floor: 6},

		{Package: "internal/status", Floor: 7},

		{Package: "internal/page", Floor: 8},

		{Package: "internal/operator", Floor: 9},
		{Package: "internal/page/pagetest", Floor: 9, Support: true},
		{Package: "internal/testenv", Floor: 9, Support: true},

		{Package: "internal/cli", Floor: 10},
		{Package: "internal/layering", Floor: 10},

		{Package: "internal/demo", Floor: 11, Support: true},

		{Package: "cmd/numaform", Floor: Programs},
		{Package: "cmd/numaform-agent", Floor: Programs, Without: agentWithout()},
		{Package: "examples/*", Floor: Programs},
		{Package: "examples/*/*", Floor: Programs},
		{Package: "test/*", Floor: Programs},
		{Package: "tools/*", Floor: Programs},
	}
}

// Simulators is the directory of the simulators' module, which shares no code with
// numaform.
const Simulators = "test/sim"

// SimulatorTable returns the floors of the simulators' packages.
func SimulatorTable() []Row {
	return []Row{
		{Package: "control", Floor: 0},
		{Package: "qemu", Floor: 0},
		{Package: "pvesim", Floor: 1},
		{Package: "statesim", Floor: 1},
		{Package: "guestsim", Floor: 2},
		{Package: "cmd/*", Floor: Programs},
	}
}

// agentWithout returns imports that are too large for the agent, which runs as root on a
// hypervisor.
func agentWithout() []string {
	return []string{
		"github.com/hashicorp",
		"k8s.io/api",
		"k8s.io/apimachinery",
		"k8s.io/client-go",
		"sigs.k8s.io/controller-runtime",
		"sigs.k8s.io/karpenter",
	}
}

// pureImports lists the packages that a pure package may import besides lower pure packages
// of the module: they compute on values, and use no input, output or clock. Add a package
// only if the same arguments always give the same bytes. The functions of package time that
// read a clock remain forbidden.
func pureImports() map[string]bool {
	list := []string{
		"bytes", "cmp", "container/heap", "container/list",
		"crypto/sha256", "embed",
		"encoding", "encoding/base32", "encoding/base64", "encoding/binary",
		"encoding/csv", "encoding/hex", "encoding/json", "encoding/xml",
		"errors", "fmt", "hash", "hash/crc32", "hash/fnv", "html",
		"io", "io/fs", "iter", "maps", "math", "math/big", "math/bits",
		"net/netip", "net/url", "path", "reflect", "regexp", "regexp/syntax", "slices", "sort",
		"strconv", "strings", "sync", "text/tabwriter", "text/template", "text/template/parse", "time", "unicode", "unicode/utf8",

		"github.com/Masterminds/semver/v3",
		"github.com/Masterminds/sprig/v3",
		"github.com/charmbracelet/x/ansi",
		"github.com/google/cel-go/cel",
		"github.com/google/cel-go/common/functions",
		"github.com/google/cel-go/common/types",
		"github.com/google/cel-go/common/types/ref",
		"github.com/google/cel-go/common/types/traits",
		"github.com/google/cel-go/ext",
		"github.com/google/cel-go/interpreter",
		"github.com/hashicorp/hcl/v2",
		"github.com/hashicorp/hcl/v2/hclsyntax",
		"github.com/hashicorp/hcl/v2/hclwrite",
		"github.com/hashicorp/terraform-json",
		"github.com/zclconf/go-cty/cty",
		"github.com/zclconf/go-cty/cty/convert",
		"github.com/zclconf/go-cty/cty/json",
		"go.yaml.in/yaml/v3",
		"golang.org/x/text/unicode/norm",
		"k8s.io/utils/cpuset",
		"sigs.k8s.io/yaml",
	}
	allowed := make(map[string]bool, len(list))
	for _, name := range list {
		allowed[name] = true
	}
	return allowed
}

// find returns the row of a package directory. An exact row takes precedence over a
// pattern.
func find(table []Row, dir string) (Row, bool) {
	var wild Row
	found := false
	for _, row := range table {
		if row.Package == dir {
			return row, true
		}
		if ok, err := path.Match(row.Package, dir); ok && err == nil {
			wild, found = row, true
		}
	}
	return wild, found
}
