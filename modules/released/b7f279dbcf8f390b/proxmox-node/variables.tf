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
}

variable "node_name" {
  description = "Proxmox host on which the VM is created."
  type        = string
  nullable    = false
}

variable "description" {
  description = "Lines of the VM's description. The first is numaform's marker, by which the VM is found again."
  type        = list(string)
  nullable    = false

  validation {
    condition     = can(regex("^numaform/1 cluster=${var.cluster_id} key=[0-9a-f]{32}( pins=[0-9,]+( emulator=(guest|shared))?)?$", one([for line in var.description : line if startswith(line, "numaform/1 ")])))
    error_message = "description must hold exactly one marker line of numaform, of the cluster cluster_id. Without it numaform takes the VM for someone else's and never touches it again."
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
  description = "Template to clone. node_name is its host, if that is not the VM's host; all drives of the template must then be on shared storages. datastore_id takes the disks of a full clone; a linked clone's stay where the template is."
  type = object({
    vm_id        = number
    node_name    = optional(string)
    full         = bool
    datastore_id = optional(string, "")
  })
  nullable = false
}

variable "cpu" {
  description = "CPU model and topology that the guest sees. flags are added to the model with + or removed from it with -. affinity is the set of host CPUs, such as 0-3,8; only a root@pam ticket may set it."
  type = object({
    type     = string
    sockets  = number
    cores    = number
    affinity = optional(string, "")
    flags    = optional(list(string), [])
  })
  nullable = false
}

variable "memory_mib" {
  description = "Memory in MiB. There is no ballooning: the guest has all of it, always."
  type        = number
  nullable    = false
}

variable "hugepages" {
  description = "Size in MiB of the host's huge pages that back the memory, 2 or 1024, or empty for ordinary memory. Only a root@pam ticket may set it."
  type        = string
  default     = ""
  nullable    = false
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
    condition     = length(var.numa) == 0 || sum(concat([0], var.numa[*].memory_mib)) == var.memory_mib
    error_message = "The memory of all elements of numa must add up to memory_mib, or Proxmox does not start the VM."
  }

  validation {
    condition     = alltrue([for cell in var.numa : can(regex("^[0-9]+(-[0-9]+)?(;[0-9]+(-[0-9]+)?)*$", cell.hostnodes))])
    error_message = "hostnodes of each element of numa must be a list such as 0 or 0-1;3. Without it nothing is bound, and every plan shows a difference."
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
}

variable "data_disks" {
  description = "Empty disks beside the boot disk, on SCSI slots that the template leaves free. They are deleted with the VM."
  type = list(object({
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
  }))
  default  = []
  nullable = false

  validation {
    condition     = alltrue([for disk in var.data_disks : can(regex("^scsi[0-9]+$", disk.interface))]) && length(distinct(concat(var.data_disks[*].interface, var.disk[*].interface))) == length(var.data_disks) + length(var.disk[*])
    error_message = "Each element of data_disks needs a SCSI slot of its own, such as scsi1, that is not the boot disk's."
  }
}

variable "network_devices" {
  description = "Network devices, net0 first. Empty keeps the template's. Without mac_address Proxmox makes one up, and without queues a virtio device has one per vCPU. rate_limit is in megabytes per second, 0 for none; trunks are VLANs that pass with their tags."
  type = list(object({
    bridge       = string
    model        = optional(string, "virtio")
    firewall     = optional(bool, false)
    mtu          = optional(number, 0)
    vlan_id      = optional(number, 0)
    mac_address  = optional(string)
    rate_limit   = optional(number, 0)
    queues       = optional(number)
    trunks       = optional(list(number), [])
    disconnected = optional(bool, false)
  }))
  default  = []
  nullable = false
}

variable "pci_devices" {
  description = "PCI devices of the host that the VM gets, hostpci0 first: each by its resource mapping, of which Proxmox takes a free device when the VM starts. mdev is the type of a mediated device."
  type = list(object({
    mapping = string
    mdev    = optional(string, "")
    pcie    = optional(bool, false)
    xvga    = optional(bool, false)
  }))
  default  = []
  nullable = false
}

variable "seed" {
  description = "Volume of the ISO image that the guest reads at its first boot, such as local:iso/seed.iso, or empty for none. It must be there when the VM is created and when it starts, and may be detached and deleted afterwards."
  type        = string
  default     = ""
  nullable    = false
}

variable "standby" {
  description = "Whether the VM is created and stays stopped until it is needed as a node."
  type        = bool
  default     = false
  nullable    = false
}

variable "timeouts" {
  description = "Seconds that the provider waits: create for all from the clone to the end of the start, start for the start alone, delete for stop and removal."
  type = object({
    create = optional(number, 1800)
    start  = optional(number, 300)
    delete = optional(number, 300)
  })
  default  = {}
  nullable = false
}

variable "hardware" {
  description = "What the VM takes over from its template and must be repeated here, so that importing the VM changes nothing, and what differs from the template. A watchdog of null, and a tablet of true, keep the template's."
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
    tablet         = optional(bool, true)
    vga = optional(object({
      type      = optional(string, "std")
      memory    = optional(number, 16)
      clipboard = optional(string)
    }))
    watchdog = optional(object({
      model  = optional(string, "i6300esb")
      action = optional(string, "reset")
    }))
  })
  default  = {}
  nullable = false
}

variable "record" {
  description = "What else numaform must know to read its decision back from the file. It configures nothing."
  type        = any
  default     = {}
  nullable    = false
}
