package scheduling

import (
	"fmt"

	"github.com/numaform/numaform/topology"
)

// pagesProblem returns why the host lacks huge pages for the class.
func (c *class) pagesProblem(host *topology.Host) string {
	size := c.base.HugePages
	if size == "" || len(host.CPUs) == 0 {
		return ""
	}
	for _, n := range host.NUMANodes {
		if n.HugePages[int(size.MiB())<<10] > 0 {
			return ""
		}
	}
	if !host.TellsHugePages() {
		return "does not tell its huge pages"
	}
	return fmt.Sprintf("has no huge pages of %s reserved", size)
}
