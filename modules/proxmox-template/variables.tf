variable "node_name" {
  description = "Proxmox host of the template. numaform clones templates on their own host, so each host requires one."
  type        = string
  nullable    = false
}

variable "vm_id" {
  description = "VMID of the template. It must be unique in the Proxmox cluster and outside numaform's vmid_range."
  type        = number
  nullable    = false

  validation {
    condition     = var.vm_id == floor(var.vm_id) && var.vm_id >= 100 && var.vm_id <= 999999999
    error_message = "vm_id must be a whole number from 100 to 999999999, outside numaform's vmid_range."
  }
}

variable "name" {
  description = "Name of the template. A ProxmoxNodeClass selects templates by name, so use the same name on each host."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", var.name))
    error_message = "name must be a DNS label: at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit."
  }
}

variable "description" {
  description = "Notes of the template."
  type        = string
  default     = ""
  nullable    = false
}

variable "tags" {
  description = "Tags in addition to the module's own tag. A ProxmoxNodeClass can select templates by tags."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for tag in var.tags : can(regex("^[a-z0-9_][a-z0-9_+.-]*$", tag))])
    error_message = "tags must consist of a-z, 0-9, _, +, . and -. Proxmox changes other characters, and every plan would show the difference."
  }
}

variable "pool_id" {
  description = "Proxmox resource pool, or empty for none."
  type        = string
  default     = ""
  nullable    = false
}

variable "image" {
  description = "Disk image: its URL, checksum, format and storage. datastore_id is a file storage with the content type import. The format of Ubuntu's .img images is qcow2."
  type = object({
    url                = string
    checksum           = string
    checksum_algorithm = string
    format             = optional(string, "qcow2")
    datastore_id       = string
    verify_certificate = optional(bool, true)
  })
  nullable = false

  validation {
    condition     = can(regex("^https?://[^/\\s]+/\\S+$", var.image.url))
    error_message = "image.url must be an http or https URL of a file, such as https://images.example/debian-13.qcow2."
  }

  validation {
    condition     = contains(["md5", "sha1", "sha224", "sha256", "sha384", "sha512"], var.image.checksum_algorithm)
    error_message = "image.checksum_algorithm must be md5, sha1, sha224, sha256, sha384 or sha512."
  }

  # The validation above rejects an unknown algorithm.
  validation {
    condition = can(regex("^[0-9A-Fa-f]+$", var.image.checksum)) && length(var.image.checksum) == lookup(
      { md5 = 32, sha1 = 40, sha224 = 56, sha256 = 64, sha384 = 96, sha512 = 128 }, var.image.checksum_algorithm, length(var.image.checksum)
    )
    error_message = "image.checksum must be the checksum of the image by checksum_algorithm, in hexadecimal: copy it from the file SHA256SUMS or SHA512SUMS next to the image."
  }

  validation {
    condition     = contains(["qcow2", "raw", "vmdk"], var.image.format)
    error_message = "image.format must be qcow2, raw or vmdk. Proxmox does not decompress images: decompress the image and serve it from your own web server."
  }
}

variable "disk" {
  description = "Boot disk: the storage of the template's disks, and the size of the boot disk, which is at least the size of the disk in the image."
  type = object({
    datastore_id = string
    size_gib     = number
    cache        = optional(string, "none")
    discard      = optional(bool, true)
    iothread     = optional(bool, true)
    ssd          = optional(bool, false)
  })
  nullable = false

  validation {
    condition     = var.disk.size_gib >= 1 && var.disk.size_gib == floor(var.disk.size_gib)
    error_message = "disk.size_gib must be a whole number of GiB, at least the size of the disk in the image."
  }
}

variable "machine" {
  description = "Machine type: pc, or q35, which PCIe devices require. The guest must find its seed on an IDE drive: test this before you use q35."
  type        = string
  default     = "pc"
  nullable    = false

  validation {
    condition     = contains(["pc", "q35"], var.machine)
    error_message = "machine must be pc or q35."
  }
}

variable "firmware" {
  description = "Firmware: bios is seabios, or ovmf, which adds an EFI disk. secure_boot enrolls the keys of Microsoft and of the distributions in the EFI disk."
  type = object({
    bios        = optional(string, "seabios")
    secure_boot = optional(bool, false)
  })
  default  = {}
  nullable = false

  validation {
    condition     = contains(["seabios", "ovmf"], var.firmware.bios)
    error_message = "firmware.bios must be seabios or ovmf."
  }

  validation {
    condition     = !var.firmware.secure_boot || var.firmware.bios == "ovmf"
    error_message = "firmware.secure_boot requires firmware.bios = \"ovmf\"."
  }
}

variable "tpm_version" {
  description = "TPM: v1.2 or v2.0, or empty for none."
  type        = string
  default     = ""
  nullable    = false

  validation {
    condition     = contains(["", "v1.2", "v2.0"], var.tpm_version)
    error_message = "tpm_version must be v1.2 or v2.0, or empty for no TPM."
  }
}

variable "cpu" {
  description = "CPU of the template itself. numaform's clones use the cpuType of their ProxmoxNodeClass, without flags."
  type = object({
    type  = optional(string, "host")
    flags = optional(list(string), [])
    cores = optional(number, 2)
  })
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for flag in var.cpu.flags : can(regex("^[+-]\\S+$", flag))])
    error_message = "cpu.flags must each begin with + or -, such as \"+aes\"."
  }
}

variable "memory_mib" {
  description = "Memory of the template itself. numaform's clones use the memory of their instance type."
  type        = number
  default     = 2048
  nullable    = false
}

variable "agent" {
  description = "QEMU guest agent. It is always enabled, because numaform uses it to shut guests down; the image must contain it. trim frees unused blocks after a clone."
  type = object({
    trim = optional(bool, false)
    type = optional(string, "virtio")
  })
  default  = {}
  nullable = false

  validation {
    condition     = contains(["virtio", "isa"], var.agent.type)
    error_message = "agent.type must be virtio or isa."
  }
}

variable "vga" {
  description = "Display. serial0 is the serial console, which the template always has."
  type = object({
    type   = optional(string, "serial0")
    memory = optional(number)
  })
  default  = {}
  nullable = false
}

variable "network_devices" {
  description = "Network devices, net0 first. The nodes of a ProxmoxNodeClass without networks keep these devices."
  type = list(object({
    bridge   = string
    model    = optional(string, "virtio")
    firewall = optional(bool, false)
    mtu      = optional(number)
    vlan_id  = optional(number)
  }))
  nullable = false

  validation {
    condition     = length(var.network_devices) >= 1 && length(var.network_devices) <= 6
    error_message = "network_devices must have 1 to 6 entries."
  }
}
