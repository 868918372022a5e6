package fleet

import (
	"crypto/sha256"
	"fmt"
)

// macPrefix is the length of a MAC address prefix: three octets.
const macPrefix = len("BC:24:11")

// GiveMACs completes the MAC addresses of vm's network devices that have only a prefix, and
// replaces addresses that others use. The new addresses derive from vm's key and differ
// from the addresses in others.
func GiveMACs(vm *VM, others []VM) {
	used := map[string]bool{}
	for i := range others {
		for _, n := range others[i].Networks {
			used[n.MAC] = true
		}
	}
	networks := make([]Network, len(vm.Networks))
	copy(networks, vm.Networks)
	for i := range networks {
		n := &networks[i]
		if len(n.MAC) < macPrefix {
			continue
		}
		prefix := n.MAC[:macPrefix]
		for try := 0; len(n.MAC) == macPrefix || used[n.MAC]; try++ {
			sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", vm.Key, i, try))
			n.MAC = fmt.Sprintf("%s:%02X:%02X:%02X", prefix, sum[0], sum[1], sum[2])
		}
		used[n.MAC] = true
	}
	if len(networks) > 0 {
		vm.Networks = networks
	}
}
