# The ISO image that a guest joins with.

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
  hardware       = { boot_order = ["scsi0"] }
  seed           = "local:iso/numaform-prod-2001-01234567.iso"
}

run "is_attached_when_the_vm_is_made" {
  assert {
    condition     = proxmox_virtual_environment_vm.node.boot_order == tolist(["scsi0", "ide2"])
    error_message = "The drive must stand last in the boot order, where Proxmox would put it when the seed goes."
  }
  assert {
    condition     = one(proxmox_virtual_environment_vm.node.cdrom).file_id == "local:iso/numaform-prod-2001-01234567.iso" && one(proxmox_virtual_environment_vm.node.cdrom).interface == "ide2"
    error_message = "The seed must be attached as ide2."
  }
}

run "is_not_touched_afterwards" {
  variables {
    seed = "local:iso/numaform-prod-2001-89abcdef.iso"
  }
  assert {
    condition     = one(proxmox_virtual_environment_vm.node.cdrom).file_id == "local:iso/numaform-prod-2001-01234567.iso"
    error_message = "What is in the drive later is not the state's business."
  }
}
