package scheduling

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// lacks returns how far the available resources fall short of the requests: 1 for each
// resource of which nothing is available.
func lacks(requests, available corev1.ResourceList) float64 {
	lack := 0.0
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		want, have := requests[name], available[name]
		if want.Cmp(have) > 0 {
			lack += 1 - have.AsApproximateFloat64()/want.AsApproximateFloat64()
		}
	}
	return lack
}

func describe(list, keys corev1.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if amount, ok := list[name]; ok && name != corev1.ResourcePods {
			parts = append(parts, fmt.Sprintf("%s %s", name, readable(name, amount)))
		} else if !ok {
			parts = append(parts, fmt.Sprintf("no %s", name))
		}
	}
	return strings.Join(parts, ", ")
}

func readable(name corev1.ResourceName, amount resource.Quantity) string {
	if name == corev1.ResourceMemory && amount.Value() >= mebibyte {
		return fmt.Sprintf("%dMi", amount.Value()/mebibyte)
	}
	return amount.String()
}

// plainWords turns Karpenter's errors into one line. Karpenter joins an error for each
// way to create a node; repetitions, and errors about our own host choice, are dropped.
func plainWords(err error) string {
	if err == nil {
		return "Karpenter's scheduler gave no reason"
	}
	topology := regexp.MustCompile(`unsatisfiable topology constraint for (.+), key=(\S+) \(counts = (.*), podDomains = .*`)
	full := regexp.MustCompile(`no instance type .*, requirements=.*` + regexp.QuoteMeta(corev1.LabelTopologyZone) + ` In \[([^\]]+)\].*`)
	rest := regexp.MustCompile(`(no instance type .*), requirements=.*, resources=`)
	inside := regexp.MustCompile(`(?:` + regexp.QuoteMeta(labelHostChoice) + `|karpenter\.sh/(?:initialized|registered)) In \[\w+\],? ?`)
	counts := false
	var parts []string
	for part := range strings.SplitSeq(err.Error(), "; ") {
		part = strings.Join(strings.Fields(part), " ")
		if part == "" || strings.Contains(part, labelHostChoice+" NotIn") {
			continue
		}
		counts = counts || topology.MatchString(part)
		part = topology.ReplaceAllString(part, "the pod's $1 over $2 leaves no place (pods there: $3)")
		part = rest.ReplaceAllString(full.ReplaceAllString(part, "$1 has no room"), "$1 for ")
		part = inside.ReplaceAllString(part, "")
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	switch text := strings.Join(parts, ", and "); {
	case len(parts) == 0:
		return err.Error()
	case counts:
		return text + ": add a host, make room where it may go, or have the pod only prefer it"
	default:
		return text
	}
}
