# A VM that another tool created.

mock_provider "proxmox" {}

variables {
  format_version = 1
  cluster_id     = "prod"
  name           = "default-x7k2p"
  vm_id          = 1001
  node_name      = "pve-1"
  description    = ["numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef", "Adopted."]
  tags           = ["karpenter"]
  instance_type  = "t1.2vcpu-4gb"
  cpu            = { type = "host", sockets = 1, cores = 2 }
  memory_mib     = 4096
}

run "keeps_its_name_and_tags" {
  assert {
    condition     = proxmox_virtual_environment_vm.node.name == "default-x7k2p" && proxmox_virtual_environment_vm.node.tags == tolist(["karpenter", "numaform", "numaform-prod"])
    error_message = "Name and tags must stay, with numaform's tags added."
  }
  assert {
    condition     = !proxmox_virtual_environment_vm.node.reboot_after_update && proxmox_virtual_environment_vm.node.stop_on_destroy
    error_message = "The VM must not be restarted by an update."
  }
}

run "refuses_a_description_without_a_marker" {
  command = plan

  variables {
    description = ["mine"]
  }
  expect_failures = [var.description]
}
