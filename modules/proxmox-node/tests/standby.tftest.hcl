# A VM that is created and stays stopped until it is needed.

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
  standby        = true
}

run "is_created_stopped" {
  assert {
    condition     = !proxmox_virtual_environment_vm.node.started && !proxmox_virtual_environment_vm.node.on_boot
    error_message = "A standby VM must not start, also not with its host."
  }
}

run "starts_in_place" {
  variables {
    standby = false
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.started && proxmox_virtual_environment_vm.node.on_boot
    error_message = "A woken VM must start, and with its host from then on."
  }
}
