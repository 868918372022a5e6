package topology

import (
	"strconv"
	"strings"
)

// FormatNUMA returns a cell as the value of the Proxmox option numaN, such as
// "cpus=0-3;8-11,hostnodes=0-1,memory=4096,policy=bind". It omits keys without a value. A
// cell needs GuestCPUs: Proxmox rejects a numaN without cpus.
func FormatNUMA(cell NUMACell) string {
	parts := []string{"cpus=" + joinList(cell.GuestCPUs)}
	if !cell.HostNodes.IsEmpty() {
		parts = append(parts, "hostnodes="+joinList(cell.HostNodes))
	}
	if cell.MemoryMiB != 0 {
		parts = append(parts, "memory="+strconv.FormatInt(cell.MemoryMiB, 10))
	}
	if cell.Policy != "" {
		parts = append(parts, "policy="+string(cell.Policy))
	}
	return strings.Join(parts, ",")
}

// joinList formats a set in numaN's list format, where a comma ends the value.
func joinList(set CPUSet) string { return strings.ReplaceAll(set.String(), ",", ";") }
