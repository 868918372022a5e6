locals {
  # The name contains the VMID, so that hosts that share a storage each have their own file.
  file = "template-${var.vm_id}.${var.image.format}"

  # The tag distinguishes the template from an unrelated VM with the same VMID.
  tag = "numaform-template-${var.vm_id}"
}

data "proxmox_virtual_environment_vms" "all" {}

resource "proxmox_download_file" "image" {
  node_name           = var.node_name
  datastore_id        = var.image.datastore_id
  content_type        = "import"
  file_name           = local.file
  url                 = var.image.url
  checksum            = lower(var.image.checksum)
  checksum_algorithm  = var.image.checksum_algorithm
  verify              = var.image.verify_certificate
  overwrite           = false
  overwrite_unmanaged = false
  upload_timeout      = 3600
}

# Properties that require a new template, because clones can share its disks. On its own, the
# provider would change them in place, or ignore a new image.
resource "terraform_data" "made_of" {
  input = {
    checksum    = lower(var.image.checksum)
    bios        = var.firmware.bios
    secure_boot = var.firmware.secure_boot
    tpm_version = var.tpm_version
    storage     = var.disk.datastore_id
    size_gib    = var.disk.size_gib
  }
}

resource "proxmox_virtual_environment_vm" "template" {
  name        = var.name
  vm_id       = var.vm_id
  node_name   = var.node_name
  description = var.description == "" ? null : var.description
  tags        = sort(distinct(concat([local.tag], var.tags)))
  pool_id     = var.pool_id == "" ? null : var.pool_id

  template = true
  started  = false
  on_boot  = false

  # Seconds. Proxmox copies the disk from the image.
  timeout_create = 3600

  bios          = var.firmware.bios
  machine       = var.machine
  scsi_hardware = "virtio-scsi-single"
  boot_order    = ["scsi0"]

  # A template never runs, so the provider must not wait for its agent.
  agent {
    enabled = true
    timeout = "10s"
    trim    = var.agent.trim
    type    = var.agent.type

    wait_for_ip {
      disabled = true
    }
  }

  cpu {
    cores = var.cpu.cores
    flags = var.cpu.flags
    numa  = true
    type  = var.cpu.type
  }

  disk {
    interface    = "scsi0"
    datastore_id = var.disk.datastore_id
    # The name is known before the download, so a lost file is downloaded again without
    # replacing the template.
    import_from = "${var.image.datastore_id}:import/${local.file}"
    size        = var.disk.size_gib
    cache       = var.disk.cache
    discard     = var.disk.discard ? "on" : "ignore"
    iothread    = var.disk.iothread
    ssd         = var.disk.ssd
  }

  dynamic "efi_disk" {
    for_each = var.firmware.bios == "ovmf" ? [var.firmware] : []

    content {
      datastore_id      = var.disk.datastore_id
      file_format       = "raw"
      type              = "4m"
      pre_enrolled_keys = efi_disk.value.secure_boot
    }
  }

  memory {
    dedicated = var.memory_mib
    floating  = 0
  }

  dynamic "network_device" {
    for_each = var.network_devices

    content {
      bridge   = network_device.value.bridge
      firewall = network_device.value.firewall
      model    = network_device.value.model
      mtu      = network_device.value.mtu
      vlan_id  = network_device.value.vlan_id
    }
  }

  operating_system {
    type = "l26"
  }

  serial_device {
    device = "socket"
  }

  dynamic "tpm_state" {
    for_each = var.tpm_version == "" ? [] : [var.tpm_version]

    content {
      datastore_id = var.disk.datastore_id
      version      = tpm_state.value
    }
  }

  vga {
    type   = var.vga.type
    memory = var.vga.memory
  }

  depends_on = [proxmox_download_file.image]

  lifecycle {
    replace_triggered_by = [terraform_data.made_of]

    # The provider retries a failed creation and treats "already exists" as success: it would
    # convert any VM with this VMID to a template.
    precondition {
      condition = alltrue([
        for vm in data.proxmox_virtual_environment_vms.all.vms : vm.vm_id != var.vm_id || try(contains(vm.tags, local.tag), false)
      ])
      error_message = "VMID ${var.vm_id} belongs to another VM, which does not have the tag ${local.tag}: choose an unused vm_id. If the VM is this template without its tag, restore the tag: qm set ${var.vm_id} --tags ${local.tag}"
    }
  }
}
