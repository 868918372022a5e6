package operator_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/operator"
)

func TestCheckFeatureGates(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                "",
		"NodeRepair=true": "",
		"NodeRepair=false, SpotToSpotConsolidation=true,": "",
		"NodeRepairs=true":                     `unsupported feature gate "NodeRepairs": must be one of CapacityBuffer, NodeOverlay, NodeRepair, SpotToSpotConsolidation, StaticCapacity`,
		"noderepair=true":                      `unsupported feature gate "noderepair"`,
		"NodeRepair=true,NodeOverlay=true":     "",
		"StaticCapacity=true":                  "",
		"ReservedCapacity=true":                `unsupported feature gate "ReservedCapacity"`,
		"CapacityBuffer=true":                  "",
		"NodeRepair":                           `NodeRepair is "": must be NodeRepair=true or NodeRepair=false`,
		"NodeRepair=yes":                       `NodeRepair is "yes"`,
		"=true":                                `unsupported feature gate ""`,
		"SpotToSpotConsolidation=true,Other=1": `unsupported feature gate "Other"`,
	} {
		err := operator.CheckFeatureGates(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestClusterStateMetrics checks that the controllers that serve metrics of each Node,
// NodeClaim and pod run only if these metrics are enabled.
func TestClusterStateMetrics(t *testing.T) {
	for disabled, want := range map[bool]int{true: 2, false: 6} {
		got, err := operator.Observability(&operator.ControllerSettings{NoClusterState: disabled})
		if err != nil || got != want {
			t.Errorf("with NoClusterState %t, %d controllers serve metrics, want %d: %v", disabled, got, want, err)
		}
	}
}

// TestGatedControllers checks that the controllers for node repair, NodeOverlays,
// CapacityBuffers and NodePools of a fixed size run only if their feature gates are enabled.
func TestGatedControllers(t *testing.T) {
	t.Parallel()
	for gates, want := range map[string]string{"": "", "NodeRepair=false": "", "NodeRepair=true": "node.health", "NodeOverlay=false": "", "NodeOverlay=true": "nodeoverlay.controller", "CapacityBuffer=false": "", "CapacityBuffer=true": "capacitybuffer", "StaticCapacity=false": "", "StaticCapacity=true": "static"} {
		names, err := operator.Gated(gates)
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Errorf("%q: %q runs, want %q: %v", gates, got, want, err)
		}
	}
	if _, err := operator.Gated("NodeRepairs=true"); err == nil {
		t.Error("a misspelled gate is accepted")
	}
}
