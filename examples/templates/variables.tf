variable "templates" {
  description = "Templates by name: their image, and the VMID on each host. Add a new image as a new entry with new VMIDs; never change an entry that has nodes."
  type = map(object({
    image = object({
      url                = string
      checksum           = string
      checksum_algorithm = optional(string, "sha256")
      format             = optional(string, "qcow2")
    })
    vm_ids = map(number)
    tags   = optional(list(string), [])
  }))
  nullable = false

  validation {
    condition     = length(flatten([for t in var.templates : values(t.vm_ids)])) == length(distinct(flatten([for t in var.templates : values(t.vm_ids)])))
    error_message = "Duplicate VMID: VMIDs must be unique in a Proxmox cluster, across all hosts."
  }
}

variable "image_storage" {
  description = "File storage with content type import, for the images."
  type        = string
}

variable "disk_storage" {
  description = "Storage for the disks of templates and linked clones."
  type        = string
}

variable "disk_gib" {
  description = "Size of the templates' disks. A node's disk has the size that its class sets, if that is larger."
  type        = number
}

variable "machine" {
  description = "pc or q35."
  type        = string
  default     = "pc"
}

variable "firmware" {
  description = "bios is seabios or ovmf; secure_boot requires ovmf."
  type = object({
    bios        = optional(string, "seabios")
    secure_boot = optional(bool, false)
  })
  default = {}
}

variable "tpm_version" {
  description = "v1.2 or v2.0, or empty for none."
  type        = string
  default     = ""
}

variable "vga" {
  description = "Display device."
  type = object({
    type   = optional(string, "serial0")
    memory = optional(number)
  })
  default = {}
}

variable "network_devices" {
  description = "Network devices of the templates, net0 first."
  type = list(object({
    bridge   = string
    model    = optional(string, "virtio")
    firewall = optional(bool, false)
    mtu      = optional(number)
    vlan_id  = optional(number)
  }))
  default = [{ bridge = "vmbr0" }]
}
