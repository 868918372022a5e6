package fleet

import (
	"crypto/sha256"
	"fmt"
)

// macPrefix is how long the prefix of a MAC address is: three octets of it.
const macPrefix = len("BC:24:11")

// GiveMACs completes the MAC addresses of a VM's network devices, where they have a
// prefix: by its key, and none that another VM has.
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
