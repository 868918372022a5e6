package generator

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
)

// The patterns of a Kubernetes label.
var (
	labelKey   = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$`)
)

// labelList returns labels as sorted key=value strings, because a key may be an HCL
// keyword, which is not valid as an attribute.
func labelList(labels map[string]string) []string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, key+"="+labels[key])
	}
	return list
}

// labelMap is the inverse of labelList.
func labelMap(list []string) map[string]string {
	if len(list) == 0 {
		return nil
	}
	labels := make(map[string]string, len(list))
	for _, label := range list {
		key, value, _ := strings.Cut(label, "=")
		labels[key] = value
	}
	return labels
}

func checkLabels(vm *fleet.VM) error {
	for _, key := range slices.Sorted(maps.Keys(vm.Labels)) {
		if !labelKey.MatchString(key) || !labelValue.MatchString(vm.Labels[key]) {
			return refuse("labels", key+"="+vm.Labels[key], fmt.Sprintf("want a label of Kubernetes: "+
				"a key such as example.com/tier, and at most 63 of A-Z, a-z, 0-9, -, _ and . for its value %q", vm.Labels[key]))
		}
	}
	return nil
}
