variable "node_name" {
  description = "Proxmox host of the VM, taken from the output of the module that makes it, so that the VM comes first."
  type        = string
  nullable    = false
}

variable "vm_id" {
  description = "VMID of the VM, taken from the output of the module that makes it."
  type        = number
  nullable    = false
}

variable "security_groups" {
  description = "Firewall security groups of the VM, first match first: a name such as k8s, or, for one network device, a name and the device, such as storage@net1. Their rules act on network devices with firewall = true."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.security_groups) > 0
    error_message = "security_groups is empty: leave out the call of this module for a VM without security groups."
  }

  validation {
    condition     = alltrue([for group in var.security_groups : can(regex("^[A-Za-z][A-Za-z0-9_-]{1,17}(@net[0-9]+)?$", group))])
    error_message = "security_groups must contain names of groups, such as k8s, or a name and a network device, such as storage@net1."
  }
}
