# PCI devices of the host, by resource mapping.

mock_provider "proxmox" {}

variables {
  format_version = 1
  cluster_id     = "prod"
  name           = "workers-2001"
  vm_id          = 2001
  node_name      = "pve-1"
  description    = ["numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef"]
  instance_type  = "m4x8"
  clone          = { vm_id = 9000, full = false }
  cpu            = { type = "host", sockets = 1, cores = 4 }
  memory_mib     = 8192
  pci_devices    = [{ mapping = "gpu", pcie = true, xvga = true }, { mapping = "vgpu", mdev = "nvidia-63" }]
}

run "are_mapped" {
  assert {
    condition     = proxmox_virtual_environment_vm.node.hostpci[*].device == tolist(["hostpci0", "hostpci1"]) && proxmox_virtual_environment_vm.node.hostpci[*].mapping == tolist(["gpu", "vgpu"])
    error_message = "Devices must be numbered from 0 and named by their mapping."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.hostpci[0].pcie && proxmox_virtual_environment_vm.node.hostpci[0].xvga && proxmox_virtual_environment_vm.node.hostpci[1].mdev == "nvidia-63"
    error_message = "Each device must be passed through as asked."
  }
}

run "are_not_touched_afterwards" {
  variables {
    pci_devices = []
  }
  assert {
    condition     = length(proxmox_virtual_environment_vm.node.hostpci) == 2
    error_message = "A VM that is to have other devices is replaced."
  }
}
