# Invalid inputs that the plan must reject before any request to Proxmox.

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

run "url_of_no_web_server" {
  command = plan
  variables {
    image = {
      url                = "file:///root/debian-13.qcow2"
      checksum           = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
      checksum_algorithm = "sha256"
      datastore_id       = "local"
    }
  }
  expect_failures = [var.image]
}

run "checksum_of_another_algorithm" {
  command = plan
  variables {
    image = {
      url                = "https://images.example/debian-13.qcow2"
      checksum           = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
      checksum_algorithm = "sha512"
      datastore_id       = "local"
    }
  }
  expect_failures = [var.image]
}

run "no_checksum" {
  command = plan
  variables {
    image = {
      url                = "https://images.example/debian-13.qcow2"
      checksum           = ""
      checksum_algorithm = "sha256"
      datastore_id       = "local"
    }
  }
  expect_failures = [var.image]
}

run "compressed_image" {
  command = plan
  variables {
    image = {
      url                = "https://images.example/nocloud-amd64.raw.xz"
      checksum           = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
      checksum_algorithm = "sha256"
      format             = "raw.xz"
      datastore_id       = "local"
    }
  }
  expect_failures = [var.image]
}

run "vmid" {
  command = plan
  variables {
    vm_id = 99
  }
  expect_failures = [var.vm_id]
}

run "secure_boot_without_ovmf" {
  command = plan
  variables {
    firmware = { secure_boot = true }
  }
  expect_failures = [var.firmware]
}

run "values_that_proxmox_has_not" {
  command = plan
  variables {
    name            = "Debian_13"
    tags            = ["K8s"]
    machine         = "i440fx"
    tpm_version     = "v3"
    cpu             = { flags = ["aes"] }
    agent           = { type = "usb" }
    disk            = { datastore_id = "local-lvm", size_gib = 0 }
    network_devices = []
  }
  expect_failures = [var.name, var.tags, var.machine, var.tpm_version, var.cpu, var.agent, var.disk, var.network_devices]
}

run "vmid_of_another_vm" {
  command = plan
  override_data {
    target = data.proxmox_virtual_environment_vms.all
    values = { vms = [{ vm_id = 9101, name = "database", node_name = "pve-2", tags = ["prod"], status = "running", template = false }] }
  }
  expect_failures = [proxmox_virtual_environment_vm.template]
}
