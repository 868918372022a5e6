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
  description = "clusterID of the numaform that owns the VM. It stands in the VM's tags."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", var.cluster_id))
    error_message = "cluster_id must have 1 to 32 of a-z, 0-9 and -, and begin and end with a letter or digit."
  }
}

variable "name" {
  description = "Name of the VM and of its Kubernetes Node."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", var.name))
    error_message = "name must be a DNS label: at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit."
  }
}

variable "vm_id" {
  description = "VMID, reserved before the file was written."
  type        = number
  nullable    = false

  validation {
    condition     = var.vm_id == floor(var.vm_id) && var.vm_id >= 100 && var.vm_id <= 999999999
    error_message = "vm_id must be a whole number from 100 to 999999999."
  }
}

variable "node_name" {
  description = "Proxmox host on which the VM is created. Its template must be on the same host."
  type        = string
  nullable    = false

  validation {
    condition     = length(var.node_name) > 0
    error_message = "node_name must name a Proxmox host."
  }
}

variable "description" {
  description = "Lines of the VM's description. The first is numaform's marker, by which the VM is found again."
  type        = list(string)
  nullable    = false

  validation {
    condition     = can(regex("^numaform/1 cluster=[^ ]+ key=[0-9a-f]{32}( pins=[0-9,]+)?$", var.description[0]))
    error_message = "description must begin with numaform's marker line. Without it numaform takes the VM for someone else's and never touches it again."
  }

  validation {
    condition     = length([for line in var.description : line if startswith(line, "numaform/1 ")]) == 1
    error_message = "description must hold exactly one marker line."
  }
}

variable "tags" {
  description = "Tags besides numaform's own two."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for tag in var.tags : can(regex("^[a-z0-9_][a-z0-9_+.-]*$", tag))])
    error_message = "tags must be lower case and consist of a-z, 0-9, _, +, . and -. Proxmox changes others, and every plan would show the difference."
  }
}

variable "pool_id" {
  description = "Proxmox resource pool, or empty for none."
  type        = string
  default     = ""
  nullable    = false
}

variable "instance_type" {
  description = "Instance type of the node. The guest reads it as its SMBIOS product name."
  type        = string
  nullable    = false
}

variable "clone" {
  description = "Template to clone, on the same host. datastore_id takes the disks of a full clone; a linked clone's stay where the template is."
  type = object({
    vm_id        = number
    full         = bool
    datastore_id = optional(string, "")
  })
  nullable = false

  validation {
    condition     = var.clone.full || var.clone.datastore_id == ""
    error_message = "clone.datastore_id is for full clones only: Proxmox refuses a storage for linked clones."
  }

  validation {
    condition     = var.clone.vm_id != var.vm_id
    error_message = "clone.vm_id must be the template's VMID, not the VM's own."
  }
}

variable "cpu" {
  description = "CPU model and topology that the guest sees. affinity is the set of host CPUs, such as 0-3,8; only a root@pam ticket may set it."
  type = object({
    type     = string
    sockets  = number
    cores    = number
    affinity = optional(string, "")
  })
  nullable = false

  validation {
    condition     = var.cpu.sockets >= 1 && var.cpu.cores >= 1
    error_message = "cpu.sockets and cpu.cores must be at least 1."
  }

  validation {
    condition     = var.cpu.affinity == "" || can(regex("^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$", var.cpu.affinity))
    error_message = "cpu.affinity must be a list of CPUs and ranges such as 0-3,8,10-11."
  }
}

variable "memory_mib" {
  description = "Memory in MiB. There is no ballooning: the guest has all of it, always."
  type        = number
  nullable    = false

  validation {
    condition     = var.memory_mib == floor(var.memory_mib) && var.memory_mib >= 64
    error_message = "memory_mib must be a whole number of at least 64."
  }
}

variable "numa" {
  description = "NUMA nodes of the guest, numa0 first, and the NUMA nodes of the host that back each. Empty: the guest sees none and its memory is bound to none."
  type = list(object({
    cpus       = string
    hostnodes  = string
    memory_mib = number
    policy     = string
  }))
  default  = []
  nullable = false

  validation {
    condition     = length(var.numa) <= 8
    error_message = "numa must have at most 8 elements: Proxmox knows numa0 to numa7."
  }

  validation {
    condition     = length(var.numa) == 0 || sum(concat([0], var.numa[*].memory_mib)) == var.memory_mib
    error_message = "The memory of all elements of numa must add up to memory_mib, or Proxmox does not start the VM."
  }

  validation {
    condition     = alltrue([for cell in var.numa : can(regex("^[0-9]+(-[0-9]+)?(;[0-9]+(-[0-9]+)?)*$", cell.cpus))])
    error_message = "cpus of each element of numa must be a list of guest CPUs and ranges such as 0-3;8."
  }

  validation {
    condition     = alltrue([for cell in var.numa : can(regex("^[0-9]+(-[0-9]+)?(;[0-9]+(-[0-9]+)?)*$", cell.hostnodes))])
    error_message = "hostnodes of each element of numa must be a list such as 0 or 0-1;3. Without it nothing is bound, and every plan shows a difference."
  }

  validation {
    condition     = alltrue([for cell in var.numa : contains(["bind", "interleave", "preferred"], cell.policy)])
    error_message = "policy of each element of numa must be bind, interleave or preferred."
  }
}

variable "disk" {
  description = "Boot disk, where it is to be larger than the template's. null keeps the template's and saves the resize."
  type = object({
    interface    = string
    datastore_id = string
    size_gib     = number
    aio          = optional(string)
    backup       = optional(bool)
    cache        = optional(string)
    discard      = optional(string)
    iothread     = optional(bool)
    replicate    = optional(bool)
    ssd          = optional(bool)
  })
  default = null

  validation {
    condition     = var.disk == null ? true : can(regex("^(scsi|virtio|sata|ide)[0-9]+$", var.disk.interface))
    error_message = "disk.interface must be the template's boot disk, such as scsi0."
  }

  validation {
    condition     = var.disk == null ? true : var.disk.datastore_id != "" && var.disk.size_gib >= 1
    error_message = "disk needs the datastore_id that it already lies on, and a size_gib of at least 1."
  }
}

variable "network_devices" {
  description = "Network devices, net0 first. Empty keeps the template's."
  type = list(object({
    bridge   = string
    model    = optional(string, "virtio")
    firewall = optional(bool, false)
    mtu      = optional(number, 0)
    vlan_id  = optional(number, 0)
  }))
  default  = []
  nullable = false

  validation {
    condition     = length(var.network_devices) <= 32
    error_message = "network_devices must have at most 32 elements."
  }

  validation {
    condition     = alltrue([for device in var.network_devices : device.vlan_id >= 0 && device.vlan_id <= 4094])
    error_message = "vlan_id of each network device must be from 1 to 4094, or 0 for none."
  }
}

variable "hardware" {
  description = "What the VM takes over from its template and must be repeated here, so that importing the VM changes nothing."
  type = object({
    agent = optional(object({
      enabled = optional(bool, false)
      trim    = optional(bool, false)
      type    = optional(string, "virtio")
    }), {})
    bios           = optional(string, "seabios")
    boot_order     = optional(list(string))
    machine        = optional(string, "")
    os_type        = optional(string, "other")
    scsi_hardware  = optional(string, "lsi")
    serial_devices = optional(list(string), [])
    vga = optional(object({
      type      = optional(string, "std")
      memory    = optional(number, 16)
      clipboard = optional(string)
    }))
  })
  default  = {}
  nullable = false
}

variable "security_groups" {
  description = "Firewall security groups of the VM, first match first. Their rules act on network devices with firewall = true."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "record" {
  description = "What else numaform must know to read its decision back from the file. It configures nothing."
  type        = any
  default     = {}
  nullable    = false
}
