# What a VM has other than its template.

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
  cpu            = { type = "host", sockets = 1, cores = 4, flags = ["+aes", "-pcid"] }
  memory_mib     = 8192
  hardware       = { machine = "q35", tablet = false, watchdog = { action = "poweroff" }, vga = { type = "virtio", memory = 32 } }
  network_devices = [
    { bridge = "vmbr0", rate_limit = 12.5, queues = 2, trunks = [7, 12] },
    { bridge = "vmbr1", disconnected = true },
  ]
}

run "is_as_asked" {
  command = plan

  assert {
    condition     = proxmox_virtual_environment_vm.node.machine == "q35" && !proxmox_virtual_environment_vm.node.tablet_device
    error_message = "Machine type and tablet must be as asked."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.watchdog[0].enabled && proxmox_virtual_environment_vm.node.watchdog[0].model == "i6300esb" && proxmox_virtual_environment_vm.node.watchdog[0].action == "poweroff"
    error_message = "The watchdog must be as asked, with the model of Proxmox."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.cpu[0].flags == tolist(["+aes", "-pcid"])
    error_message = "The CPU flags must be as asked."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.network_device[0].rate_limit == 12.5 && proxmox_virtual_environment_vm.node.network_device[0].queues == 2 && proxmox_virtual_environment_vm.node.network_device[0].trunks == "7;12"
    error_message = "Rate, queues and trunks must be as asked."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.network_device[1].disconnected && proxmox_virtual_environment_vm.node.network_device[1].queues == 4
    error_message = "A device may lack its link, and has a queue per vCPU if none is asked."
  }
}
