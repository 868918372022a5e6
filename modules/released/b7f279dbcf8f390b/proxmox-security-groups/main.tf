resource "proxmox_virtual_environment_firewall_rules" "security_groups" {
  node_name = var.node_name
  vm_id     = var.vm_id

  dynamic "rule" {
    for_each = var.security_groups

    content {
      security_group = split("@", rule.value)[0]
      iface          = try(split("@", rule.value)[1], null)
      comment        = "numaform"
    }
  }
}
