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
  description = "Firewall security groups of the VM, first match first. Their rules act on network devices with firewall = true."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.security_groups) > 0
    error_message = "security_groups is empty: leave out the call of this module for a VM without security groups."
  }
}
