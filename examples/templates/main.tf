# Creates a template of each image on each host, independently of numaform's fleet: with
# its own state and its own token. See docs/templates.md.

terraform {
  required_version = ">= 1.8"

  required_providers {
    proxmox = {
      source  = "registry.opentofu.org/bpg/proxmox"
      version = "0.111.1"
    }
  }

  # Configure a shared backend, so that other users can plan as well: backend "s3" {}
}

# PROXMOX_VE_ENDPOINT and PROXMOX_VE_API_TOKEN set the URL and the credential.
provider "proxmox" {}

locals {
  calls = merge([
    for name, template in var.templates : {
      for host, vm_id in template.vm_ids : "${name}/${host}" => {
        name = name, host = host, vm_id = vm_id, image = template.image, tags = template.tags
      }
    }
  ]...)
}

module "template" {
  source   = "../../modules/proxmox-template"
  for_each = local.calls

  node_name       = each.value.host
  vm_id           = each.value.vm_id
  name            = each.value.name
  tags            = each.value.tags
  image           = merge(each.value.image, { datastore_id = var.image_storage })
  disk            = { datastore_id = var.disk_storage, size_gib = var.disk_gib }
  machine         = var.machine
  firmware        = var.firmware
  tpm_version     = var.tpm_version
  vga             = var.vga
  network_devices = var.network_devices
}

output "templates" {
  description = "VMIDs of the templates by name and host."
  value       = { for call, template in module.template : call => template.vm_id }
}
