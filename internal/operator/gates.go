package operator

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sigs.k8s.io/karpenter/pkg/operator/options"
)

// The feature gates of Karpenter that do something here.
const (
	gateNodeRepair = "NodeRepair"
	gateSpotToSpot = "SpotToSpotConsolidation"
)

// CheckFeatureGates says what is wrong with the text of --feature-gates.
func CheckFeatureGates(text string) error {
	_, err := featureGates(text)
	return err
}

// featureGates reads KEY=BOOL,… of the gates that do something here. Karpenter itself
// passes over what it does not know, and opens gates whose controllers do not run here.
func featureGates(text string) (options.FeatureGates, error) {
	gates := options.DefaultFeatureGates()
	// A reserved offering needs an id and a count at a cloud; here it is a label.
	gates.ReservedCapacity = false
	var mistakes []error
	for pair := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		open, err := strconv.ParseBool(value)
		switch {
		case name == "" && value == "":
		case name != gateNodeRepair && name != gateSpotToSpot:
			mistakes = append(mistakes, fmt.Errorf("--feature-gates: %q does nothing here: write some of %s and %s", name, gateNodeRepair, gateSpotToSpot))
		case err != nil:
			mistakes = append(mistakes, fmt.Errorf("--feature-gates: %s is %q: write %s=true or %s=false", name, value, name, name))
		case name == gateNodeRepair:
			gates.NodeRepair = open
		default:
			gates.SpotToSpotConsolidation = open
		}
	}
	return gates, errors.Join(mistakes...)
}
