locals {
  vcpus = var.cpu.sockets * var.cpu.cores

  # Proxmox adds a drive to a boot order that lacks it whenever its disc changes.
  boot_order = var.seed == "" || var.hardware.boot_order == null ? var.hardware.boot_order : distinct(concat(var.hardware.boot_order, ["ide2"]))
}

resource "proxmox_virtual_environment_vm" "node" {
  name        = var.name
  vm_id       = var.vm_id
  node_name   = var.node_name
  description = join("\n", var.description)
  tags        = sort(distinct(concat(["numaform", "numaform-${var.cluster_id}"], var.tags)))
  pool_id     = var.pool_id == "" ? null : var.pool_id

  # Nothing but a change of standby starts a standby VM, also not its host's boot.
  on_boot = !var.standby
  started = !var.standby

  # A changed CPU, NUMA node or memory needs a power cycle, and numaform replaces
  # such a VM after draining its Node. The provider must not cycle it on its own.
  reboot              = false
  reboot_after_update = false

  # The Node is drained before its VM goes, so nothing is lost by stopping it.
  stop_on_destroy = true

  # A VM that was moved by hand is followed to its host, not made anew.
  migrate = true

  # Seconds. timeout_clone covers the start too, and the longer one of
  # timeout_shutdown_vm and timeout_stop_vm all of a delete.
  timeout_clone       = var.timeouts.create
  timeout_migrate     = 1800
  timeout_shutdown_vm = var.timeouts.delete
  timeout_start_vm    = var.timeouts.start
  timeout_stop_vm     = var.timeouts.delete

  bios          = var.hardware.bios
  boot_order    = local.boot_order
  machine       = var.hardware.machine
  scsi_hardware = var.hardware.scsi_hardware
  tablet_device = var.hardware.tablet

  # An attribute rather than blocks, because null keeps the template's devices
  # and an empty list removes them.
  network_device = length(var.network_devices) == 0 ? null : [
    for device in var.network_devices : {
      bridge       = device.bridge
      disconnected = device.disconnected ? true : null
      enabled      = null
      firewall     = device.firewall
      mac_address  = device.mac_address
      model        = device.model
      mtu          = device.mtu
      queues       = device.model == "virtio" ? coalesce(device.queues, min(local.vcpus, 64)) : 0
      rate_limit   = device.rate_limit == 0 ? null : device.rate_limit
      trunks       = length(device.trunks) == 0 ? null : join(";", device.trunks)
      vlan_id      = device.vlan_id
    }
  ]

  # A dead guest agent must not hold up a plan: nothing here waits for it.
  agent {
    enabled = var.hardware.agent.enabled
    timeout = "10s"
    trim    = var.hardware.agent.trim
    type    = var.hardware.agent.type

    wait_for_ip {
      disabled = true
    }
  }

  # What the guest joins with. The drive stays when the seed is gone.
  dynamic "cdrom" {
    for_each = var.seed == "" ? [] : [var.seed]

    content {
      file_id   = cdrom.value
      interface = "ide2"
    }
  }

  # With retries above 1 the provider takes a foreign VM of the same VMID for the
  # clone that it made.
  clone {
    vm_id        = var.clone.vm_id
    node_name    = coalesce(var.clone.node_name, var.node_name)
    full         = var.clone.full
    datastore_id = var.clone.datastore_id
    retries      = 1
  }

  # Without pins by affinity none is written, since a token may neither set nor
  # remove it. It is not ignored either: an affinity that someone else set, or a
  # changed one in the file, shows in the plan.
  cpu {
    affinity = var.cpu.affinity == "" ? null : var.cpu.affinity
    cores    = var.cpu.cores
    flags    = var.cpu.flags
    numa     = length(var.numa) > 0
    sockets  = var.cpu.sockets
    type     = var.cpu.type
  }

  dynamic "disk" {
    for_each = concat(var.disk == null ? [] : [var.disk], var.data_disks)

    content {
      interface    = disk.value.interface
      datastore_id = disk.value.datastore_id
      size         = disk.value.size_gib
      aio          = disk.value.aio
      backup       = disk.value.backup
      cache        = disk.value.cache
      discard      = disk.value.discard
      iothread     = disk.value.iothread
      replicate    = disk.value.replicate
      ssd          = disk.value.ssd
    }
  }

  # By mapping only: Proxmox lets nobody but root name a device itself.
  dynamic "hostpci" {
    for_each = var.pci_devices

    content {
      device  = "hostpci${hostpci.key}"
      mapping = hostpci.value.mapping
      mdev    = hostpci.value.mdev == "" ? null : hostpci.value.mdev
      pcie    = hostpci.value.pcie
      xvga    = hostpci.value.xvga
    }
  }

  # Without keep_hugepages, Proxmox gives the host's reserved pages away whenever it
  # starts a VM.
  memory {
    dedicated      = var.memory_mib
    floating       = 0
    hugepages      = var.hugepages == "" ? null : var.hugepages
    keep_hugepages = var.hugepages == "" ? null : true
  }

  dynamic "numa" {
    for_each = var.numa

    content {
      device    = "numa${numa.key}"
      cpus      = numa.value.cpus
      hostnodes = numa.value.hostnodes
      memory    = numa.value.memory_mib
      policy    = numa.value.policy
    }
  }

  operating_system {
    type = var.hardware.os_type
  }

  dynamic "serial_device" {
    for_each = var.hardware.serial_devices

    content {
      device = serial_device.value
    }
  }

  # The provider never sends sku, so the type stands in product.
  smbios {
    product = var.instance_type
    serial  = "${var.name}/${var.vm_id}"
  }

  dynamic "vga" {
    for_each = var.hardware.vga == null ? [] : [var.hardware.vga]

    content {
      clipboard = vga.value.clipboard
      memory    = vga.value.memory
      type      = vga.value.type
    }
  }

  # The provider writes it to a clone, but does not remove the template's.
  dynamic "watchdog" {
    for_each = var.hardware.watchdog == null ? [] : [var.hardware.watchdog]

    content {
      enabled = true
      model   = watchdog.value.model
      action  = watchdog.value.action
    }
  }

  lifecycle {
    ignore_changes = [
      # Not read back: an imported VM would be replaced for it.
      clone,
      # Where the VM is now is Proxmox' to say.
      node_name,
      # The seed is detached after the Node joined.
      cdrom,
      # A clone inherits these and numaform does not change them. An import reads
      # them all, and the next update would remove them, the boot disk included.
      acpi,
      amd_sev,
      audio_device,
      disk,
      efi_disk,
      hook_script_file_id,
      hostpci,
      initialization,
      keyboard_layout,
      kvm_arguments,
      rng,
      startup,
      tablet_device,
      tpm_state,
      usb,
      virtiofs,
      watchdog,
    ]
  }
}
