# The content of a template.

mock_provider "proxmox" {
  mock_data "proxmox_virtual_environment_vms" {
    defaults = { vms = [] }
  }
}

variables {
  node_name = "pve-1"
  vm_id     = 9101
  name      = "debian-13-k8s"
  image = {
    url                = "https://images.example/debian-13.qcow2"
    checksum           = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    checksum_algorithm = "sha256"
    datastore_id       = "local"
  }
  disk            = { datastore_id = "local-lvm", size_gib = 10 }
  network_devices = [{ bridge = "vmbr0" }]
}

run "defaults" {
  assert {
    condition     = proxmox_virtual_environment_vm.template.template && !proxmox_virtual_environment_vm.template.started
    error_message = "It must be a template."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.template.agent[0].enabled && proxmox_virtual_environment_vm.template.agent[0].wait_for_ip[0].disabled
    error_message = "numaform refuses templates without guest agent, and no plan may wait for one."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.template.disk[0].import_from == "local:import/template-9101.qcow2"
    error_message = "The disk must be that of the downloaded file."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.template.boot_order[0] == "scsi0" && proxmox_virtual_environment_vm.template.scsi_hardware == "virtio-scsi-single"
    error_message = "numaform wants a boot disk, first in the boot order."
  }
  assert {
    condition     = !proxmox_download_file.image.overwrite && proxmox_download_file.image.checksum == var.image.checksum
    error_message = "A file is checked, and never replaced because the server has another by now."
  }
  assert {
    condition     = length(proxmox_virtual_environment_vm.template.efi_disk) == 0 && length(proxmox_virtual_environment_vm.template.tpm_state) == 0
    error_message = "SeaBIOS has no EFI disk."
  }
}

run "firmware_and_tpm" {
  variables {
    vm_id       = 9102
    firmware    = { bios = "ovmf", secure_boot = true }
    tpm_version = "v2.0"
    tags        = ["k8s", "current"]
  }
  assert {
    condition     = one(proxmox_virtual_environment_vm.template.efi_disk).pre_enrolled_keys && one(proxmox_virtual_environment_vm.template.efi_disk).file_format == "raw"
    error_message = "OVMF needs an EFI disk, of a format that each storage takes."
  }
  assert {
    condition     = one(proxmox_virtual_environment_vm.template.tpm_state).version == "v2.0"
    error_message = "It must have its TPM."
  }
  assert {
    condition     = join(" ", proxmox_virtual_environment_vm.template.tags) == "current k8s numaform-template-9102"
    error_message = "Tags must be in the order of Proxmox."
  }
}
