package v1alpha1

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

func validateKubelet(k *KubeletConfiguration, report reporter) {
	if k == nil {
		return
	}
	oneOf := func(field, value string, values ...string) {
		if value != "" && !slices.Contains(values, value) {
			report("kubelet."+field, "%q is not known: write %s", value, strings.Join(values, ", "))
		}
	}
	oneOf("cpuManagerPolicy", k.CPUManagerPolicy, "none", "static")
	oneOf("topologyManagerPolicy", k.TopologyManagerPolicy, "none", "best-effort", "restricted", "single-numa-node")
	oneOf("topologyManagerScope", k.TopologyManagerScope, "container", "pod")
	if k.MaxPods != nil && (*k.MaxPods < 1 || *k.MaxPods > 1000) {
		report("kubelet.maxPods", "%d is not from 1 to 1000", *k.MaxPods)
	}
	validateImageGC(k, report)
	validateQuotaPeriod(k, report)
	validateShutdown(k, report)
	validateNames("kubelet.allowedUnsafeSysctls", k.AllowedUnsafeSysctls, names{
		`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*([./]?\*)?$`, "a sysctl such as net.core.somaxconn, or net.core.*", 64,
	}, report)
	if len(k.ClusterDNS) > 3 {
		report("kubelet.clusterDNS", "has %d entries: 3 are allowed", len(k.ClusterDNS))
	}
	for i, address := range k.ClusterDNS {
		if a, err := netip.ParseAddr(address); err != nil || a.Zone() != "" {
			report(fmt.Sprintf("kubelet.clusterDNS[%d]", i), "%q is not an IP address", address)
		}
	}
	reserved := []string{"cpu", "memory", "ephemeral-storage", "pid"}
	validateAmounts("kubelet.systemReserved", k.SystemReserved, reserved, false, report)
	validateAmounts("kubelet.kubeReserved", k.KubeReserved, reserved, false, report)
	validateAmounts("kubelet.evictionHard", k.EvictionHard, []string{
		"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available",
	}, true, report)
}

// validateImageGC judges the thresholds of which kubelet wants the lower below the
// higher, by its own defaults where only one is set.
func validateImageGC(k *KubeletConfiguration, report reporter) {
	high, low := int32(85), int32(80)
	for _, t := range []struct {
		field string
		set   *int32
		into  *int32
	}{{"High", k.ImageGCHighThresholdPercent, &high}, {"Low", k.ImageGCLowThresholdPercent, &low}} {
		if t.set == nil {
			continue
		}
		if *t.into = *t.set; *t.set < 0 || *t.set > 100 {
			report("kubelet.imageGC"+t.field+"ThresholdPercent", "%d is not from 0 to 100", *t.set)
		}
	}
	switch {
	case low < high:
	case k.ImageGCLowThresholdPercent != nil:
		report("kubelet.imageGCLowThresholdPercent", "%d must be below imageGCHighThresholdPercent, %d", low, high)
	case k.ImageGCHighThresholdPercent != nil:
		report("kubelet.imageGCHighThresholdPercent", "%d must be above imageGCLowThresholdPercent, %d", high, low)
	}
}

func validateQuotaPeriod(k *KubeletConfiguration, report reporter) {
	p := k.CPUCFSQuotaPeriod
	if p == nil {
		return
	}
	if p.Duration < time.Millisecond || p.Duration > time.Second {
		report("kubelet.cpuCFSQuotaPeriod", "%s is not from 1ms to 1s", p.Duration)
	}
	if k.CPUCFSQuota != nil && !*k.CPUCFSQuota {
		report("kubelet.cpuCFSQuotaPeriod", "means nothing without cpuCFSQuota: remove it, or set cpuCFSQuota")
	}
}

func validateShutdown(k *KubeletConfiguration, report reporter) {
	var whole time.Duration
	if k.ShutdownGracePeriod != nil {
		whole = k.ShutdownGracePeriod.Duration
	}
	if whole < 0 {
		report("kubelet.shutdownGracePeriod", "is negative: write a duration such as 30s")
	}
	critical := k.ShutdownGracePeriodCriticalPods
	switch {
	case critical == nil:
	case critical.Duration < 0:
		report("kubelet.shutdownGracePeriodCriticalPods", "is negative: write a duration such as 10s")
	case k.ShutdownGracePeriod == nil || critical.Duration > whole:
		report("kubelet.shutdownGracePeriodCriticalPods", "is part of shutdownGracePeriod: set that to %s at least", critical.Duration)
	}
}

// validateAmounts judges what kubelet reserves or leaves free.
func validateAmounts(field string, amounts map[string]ReservedQuantity, known []string, percent bool, report reporter) {
	for _, key := range slices.Sorted(maps.Keys(amounts)) {
		if !slices.Contains(known, key) {
			report(fmt.Sprintf("%s[%s]", field, key), "is not known: write %s", strings.Join(known, ", "))
		}
		text := string(amounts[key])
		if part, ok := strings.CutSuffix(text, "%"); ok && percent {
			if n, err := strconv.ParseFloat(part, 64); err != nil || n >= 100 || !regexp.MustCompile(`^[0-9]{1,2}([.][0-9]+)?$`).MatchString(part) {
				report(fmt.Sprintf("%s[%s]", field, key), "%q is not a percentage below 100, such as 5%%", text)
			}
			continue
		}
		if amount, err := resource.ParseQuantity(text); err != nil || amount.Sign() < 0 || len(text) > 32 {
			report(fmt.Sprintf("%s[%s]", field, key), "%q is not a quantity of 0 or more, such as 100m or 256Mi", text)
		}
	}
}
