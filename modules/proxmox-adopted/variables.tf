variable "format_version" {
  description = "Format of the node file that calls this module."
  type        = number
  nullable    = false

  validation {
    condition     = var.format_version == 1
    error_message = "This module is called by node files of format 1. Let numaform write the file again, or call the module that the file was written for."
  }
}

variable "cluster_id" {
  description = "clusterID of the numaform that adopts the VM. It stands in the VM's tags."
  type        = string
  nullable    = false
}

variable "name" {
  description = "Name of the VM and of its Kubernetes Node, as they are."
  type        = string
  nullable    = false
}

variable "vm_id" {
  description = "VMID of the VM."
  type        = number
  nullable    = false
}

variable "node_name" {
  description = "Proxmox host that the VM was on when it was adopted."
  type        = string
  nullable    = false
}

variable "description" {
  description = "Lines of the VM's description. The first is numaform's marker, by which the VM is found again."
  type        = list(string)
  nullable    = false

  validation {
    condition     = can(regex("^numaform/1 cluster=${var.cluster_id} key=[0-9a-f]{32}$", one([for line in var.description : line if startswith(line, "numaform/1 ")])))
    error_message = "description must hold exactly one marker line of numaform, of the cluster cluster_id, without pins. Without it numaform takes the VM for someone else's and never touches it again."
  }
}

variable "tags" {
  description = "Tags besides numaform's own two: the VM's tags before its adoption."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for tag in var.tags : can(regex("^[a-z0-9_][a-z0-9_+.-]*$", tag))])
    error_message = "tags must be lower case and consist of a-z, 0-9, _, +, . and -. Proxmox changes others, and every plan would show the difference."
  }
}

variable "timeouts" {
  description = "Seconds that the provider waits for the stop and the removal of the VM. The other timeouts of node files are not used."
  type = object({
    create = optional(number)
    start  = optional(number)
    delete = optional(number, 300)
  })
  default  = {}
  nullable = false
}

# The VM as it was when it was adopted. numaform counts with these values, and the module
# writes none of them.

variable "instance_type" {
  description = "Instance type of the node."
  type        = string
  nullable    = false
}

variable "cpu" {
  description = "CPU type and number of vCPUs, and the set of host CPUs that the VM is pinned to."
  type        = any
  nullable    = false
}

variable "memory_mib" {
  description = "Memory in MiB."
  type        = number
  nullable    = false
}

variable "numa" {
  description = "NUMA nodes of the guest, and the NUMA nodes of the host that back each."
  type        = any
  default     = []
  nullable    = false
}

variable "record" {
  description = "What else numaform must know to read its decision back from the file. It configures nothing."
  type        = any
  default     = {}
  nullable    = false
}
