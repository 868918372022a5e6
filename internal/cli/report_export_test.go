package cli

import (
	"bytes"

	"github.com/numaform/numaform/topology"
)

// Plans returns the report on the plans of hosts without changes. Those in repinned have a
// VM that moves to other CPUs.
func Plans(hosts []topology.HostID, repinned ...topology.HostID) string {
	var reports []hostReport
	for _, host := range hosts {
		report := hostReport{Host: host, Summary: "no changes", Verdict: "allow", Digest: "0123456789abcdef"}
		for _, other := range repinned {
			if host == other {
				report.Repinned = []string{"workers-2000: pins 0 → 4"}
			}
		}
		reports = append(reports, report)
	}
	var out bytes.Buffer
	w := &printer{w: &out}
	w.plans(reports)
	return out.String()
}
