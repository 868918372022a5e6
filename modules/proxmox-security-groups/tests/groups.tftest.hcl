# Security groups become rules of this VM only, in the given order.

mock_provider "proxmox" {}

variables {
  node_name       = "pve-1"
  vm_id           = 2001
  security_groups = ["k8s", "ssh"]
}

run "each_group_is_a_rule" {
  assert {
    condition     = proxmox_virtual_environment_firewall_rules.security_groups.rule[*].security_group == tolist(["k8s", "ssh"])
    error_message = "Each security group must become a rule, in order."
  }
  assert {
    condition     = proxmox_virtual_environment_firewall_rules.security_groups.vm_id == 2001 && proxmox_virtual_environment_firewall_rules.security_groups.node_name == "pve-1"
    error_message = "The rules must be those of the given VM."
  }
  assert {
    condition     = alltrue([for rule in proxmox_virtual_environment_firewall_rules.security_groups.rule : rule.action == null && rule.source == null && rule.dest == null])
    error_message = "A rule must refer to a group and say nothing else."
  }
}

run "a_group_of_one_device" {
  variables {
    security_groups = ["storage@net1", "k8s"]
  }
  assert {
    condition     = proxmox_virtual_environment_firewall_rules.security_groups.rule[*].security_group == tolist(["storage", "k8s"])
    error_message = "The name of the device must not be part of the group."
  }
  assert {
    condition     = proxmox_virtual_environment_firewall_rules.security_groups.rule[0].iface == "net1" && coalesce(proxmox_virtual_environment_firewall_rules.security_groups.rule[1].iface, "all") == "all"
    error_message = "Only the group with a device must have one."
  }
}

run "no_device" {
  command = plan
  variables {
    security_groups = ["storage@vmbr0"]
  }
  expect_failures = [var.security_groups]
}

run "no_groups" {
  command = plan
  variables {
    security_groups = []
  }
  expect_failures = [var.security_groups]
}
