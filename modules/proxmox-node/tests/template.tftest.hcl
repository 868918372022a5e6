# Settings that a VM takes from its template, only when it is created.

mock_provider "proxmox" {}

variables {
  format_version = 1
  cluster_id     = "prod"
  name           = "workers-2001"
  vm_id          = 2001
  node_name      = "pve-1"
  description = [
    "numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef",
    "Pool workers.",
  ]
  instance_type = "m4x8"
  clone         = { vm_id = 9000, full = false }
  cpu           = { type = "host", sockets = 1, cores = 4 }
  memory_mib    = 8192
}

run "everything_else_of_the_template" {
  variables {
    clone = { vm_id = 9000, full = true, datastore_id = "fast" }
    disk  = { interface = "scsi0", datastore_id = "fast", size_gib = 40, iothread = true, discard = "on" }
    hardware = {
      agent          = { enabled = true, trim = true }
      bios           = "ovmf"
      boot_order     = ["scsi0", "net0"]
      machine        = "q35"
      os_type        = "l26"
      scsi_hardware  = "virtio-scsi-single"
      serial_devices = ["socket"]
      vga            = { type = "serial0" }
    }
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.disk[0].size == 40 && proxmox_virtual_environment_vm.node.disk[0].iothread
    error_message = "The disk must grow and keep the template's options."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.serial_device[0].device == "socket" && proxmox_virtual_environment_vm.node.vga[0].type == "serial0"
    error_message = "The serial console must stay."
  }
}

run "keeps_what_came_with_the_clone" {
  variables {
    clone     = { vm_id = 9001, full = false }
    node_name = "pve-2"
  }
  assert {
    condition     = length(proxmox_virtual_environment_vm.node.disk) == 1
    error_message = "An update must never remove a disk that the file does not name: after an import that is the boot disk."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.clone[0].vm_id == 9000
    error_message = "Another template in the file must not replace the VM."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.node_name == "pve-1"
    error_message = "Proxmox says where the VM is, not the file."
  }
}
