package scheduling

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// wrongType matches encoding/json's error about a value of the wrong type: what the value
// was, and the path of the field, if any.
var wrongType = regexp.MustCompile(`cannot unmarshal ([a-z]+)(?: \S+)? into Go (?:struct field \w+\.(\S+) of type .*|value of type .*)$`)

// plainly returns an error text without the names of Go types.
func plainly(err error) string {
	text := err.Error()
	// The libraries say that they were decoding, which the user knows.
	for _, lead := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "while decoding JSON: ", "json: ", "yaml: "} {
		text = strings.TrimPrefix(text, lead)
	}
	if found := wrongType.FindStringSubmatch(text); found != nil {
		text = "unexpected " + found[1]
		if found[2] != "" {
			text += " in " + found[2]
		}
	}
	if strings.HasPrefix(text, "quantities must match") {
		text = "an amount is none: write such as 2, 500m or 4Gi"
	}
	return text
}

// amountsOf refuses negative amounts, as an API server does: a pod with negative requests
// would make room for others.
func amountsOf(spec *corev1.PodSpec) error {
	for i := range spec.InitContainers {
		if err := amountsIn(&spec.InitContainers[i].Resources); err != nil {
			return fmt.Errorf("initContainers[%d].resources.%w", i, err)
		}
	}
	for i := range spec.Containers {
		if err := amountsIn(&spec.Containers[i].Resources); err != nil {
			return fmt.Errorf("containers[%d].resources.%w", i, err)
		}
	}
	return nil
}

func amountsIn(resources *corev1.ResourceRequirements) error {
	if name, below := belowZero(resources.Requests); below {
		return fmt.Errorf("requests.%s is below 0: want 0 or more", name)
	}
	if name, below := belowZero(resources.Limits); below {
		return fmt.Errorf("limits.%s is below 0: want 0 or more", name)
	}
	return nil
}

// belowZero returns the first resource with a negative amount.
func belowZero(list corev1.ResourceList) (corev1.ResourceName, bool) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if amount := list[name]; amount.Sign() < 0 {
			return name, true
		}
	}
	return "", false
}
