resource "proxmox_virtual_environment_vm" "node" {
  name        = var.name
  vm_id       = var.vm_id
  node_name   = var.node_name
  description = join("\n", var.description)
  tags        = sort(distinct(concat(["numaform", "numaform-${var.cluster_id}"], var.tags)))

  # The provider must never restart the VM, which has running pods.
  reboot              = false
  reboot_after_update = false

  # The Node is drained before its VM goes, so nothing is lost by stopping it.
  stop_on_destroy = true

  # A VM that was moved by hand is followed to its host.
  migrate = true

  # Seconds. The longer one of timeout_shutdown_vm and timeout_stop_vm covers all of a
  # delete.
  timeout_migrate     = 1800
  timeout_shutdown_vm = var.timeouts.delete
  timeout_stop_vm     = var.timeouts.delete

  # numaform did not create the VM, so nothing but its name, description and tags is
  # written: whatever else another tool set stays as it is.
  lifecycle {
    ignore_changes = [
      acpi,
      agent,
      amd_sev,
      audio_device,
      bios,
      boot_order,
      cdrom,
      clone,
      cpu,
      disk,
      efi_disk,
      hook_script_file_id,
      hostpci,
      hotplug,
      initialization,
      keyboard_layout,
      kvm_arguments,
      machine,
      memory,
      network_device,
      node_name,
      numa,
      on_boot,
      operating_system,
      pool_id,
      protection,
      rng,
      scsi_hardware,
      serial_device,
      smbios,
      started,
      startup,
      tablet_device,
      tpm_state,
      usb,
      vga,
      virtiofs,
      watchdog,
    ]
  }
}
