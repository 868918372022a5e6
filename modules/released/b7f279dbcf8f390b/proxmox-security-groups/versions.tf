terraform {
  required_version = ">= 1.8"

  required_providers {
    proxmox = {
      source  = "registry.opentofu.org/bpg/proxmox"
      version = ">= 0.111.1"
    }
  }
}
