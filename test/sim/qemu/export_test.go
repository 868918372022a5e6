package qemu

// Arguments returns QEMU's arguments for a VM in directory dir, whose address ends in 15.
func Arguments(vm VM, dir, accelerator string, hostNodes ...int) ([]string, error) {
	return arguments(vm, here{dir: dir, accelerator: accelerator, hostNodes: hostNodes, address: 15})
}

// Model returns QEMU's CPU model for a VM's CPU type.
func Model(cpu, accelerator string) string {
	return model(cpu, accelerator)
}

// At returns a Hypervisor without image that uses dir.
func At(dir string) *Hypervisor {
	return &Hypervisor{cfg: Config{Dir: dir}, segments: map[string]*segment{}}
}

// Connect connects the cards of a VM in directory dir.
func (h *Hypervisor) Connect(vm VM, dir string) (disconnect func(), err error) {
	return h.connect(vm, dir)
}
