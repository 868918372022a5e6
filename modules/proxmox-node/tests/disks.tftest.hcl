# Data disks besides the boot disk.

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
  disk           = { interface = "scsi0", datastore_id = "local", size_gib = 20 }
  data_disks     = [{ interface = "scsi1", datastore_id = "fast", size_gib = 100, discard = "on", iothread = true }, { interface = "scsi3", datastore_id = "local", size_gib = 1 }]
}

run "stand_beside_the_boot_disk" {
  assert {
    condition     = proxmox_virtual_environment_vm.node.disk[*].interface == tolist(["scsi0", "scsi1", "scsi3"]) && proxmox_virtual_environment_vm.node.disk[*].size == tolist([20, 100, 1])
    error_message = "Each disk must have its slot and its size."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.disk[1].datastore_id == "fast" && proxmox_virtual_environment_vm.node.disk[1].discard == "on" && proxmox_virtual_environment_vm.node.disk[1].iothread
    error_message = "A data disk must have its storage and its options."
  }
}

run "are_not_touched_afterwards" {
  variables {
    data_disks = []
  }
  assert {
    condition     = length(proxmox_virtual_environment_vm.node.disk) == 3
    error_message = "A VM that is to have other disks is replaced."
  }
}

run "on_a_slot_twice" {
  command = plan
  variables {
    data_disks = [{ interface = "scsi1", datastore_id = "fast", size_gib = 1 }, { interface = "scsi1", datastore_id = "fast", size_gib = 1 }]
  }
  expect_failures = [var.data_disks]
}

run "on_the_slot_of_the_boot_disk" {
  command = plan
  variables {
    data_disks = [{ interface = "scsi0", datastore_id = "fast", size_gib = 1 }]
  }
  expect_failures = [var.data_disks]
}
