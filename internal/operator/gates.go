package operator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/karpenter/pkg/operator/options"
)

// CheckFeatureGates returns an error if the value of --feature-gates is invalid.
func CheckFeatureGates(text string) error {
	_, err := featureGates(text)
	return err
}

// featureGates parses KEY=BOOL,… for the gates that have an effect here. Karpenter itself
// ignores unknown gates, and accepts gates whose controllers do not run here.
func featureGates(text string) (options.FeatureGates, error) {
	gates := options.DefaultFeatureGates()
	// A reserved offering requires an ID and a count from a cloud; here it is a label.
	gates.ReservedCapacity = false
	ours := map[string]*bool{
		"CapacityBuffer": &gates.CapacityBuffer,
		"NodeOverlay":    &gates.NodeOverlay, "NodeRepair": &gates.NodeRepair, "SpotToSpotConsolidation": &gates.SpotToSpotConsolidation,
	}
	var mistakes []error
	for pair := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		open, err := strconv.ParseBool(value)
		switch {
		case name == "" && value == "":
		case ours[name] == nil:
			mistakes = append(mistakes, fmt.Errorf("--feature-gates: %q does nothing here: write some of %s",
				name, strings.Join(slices.Sorted(maps.Keys(ours)), ", ")))
		case err != nil:
			mistakes = append(mistakes, fmt.Errorf("--feature-gates: %s is %q: write %s=true or %s=false", name, value, name, name))
		default:
			*ours[name] = open
		}
	}
	return gates, errors.Join(mistakes...)
}
