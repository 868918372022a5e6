# The name identifies the image: a ProxmoxNodeClass refers to it in spec.template.name.
templates = {
  "debian-13-k8s-20261101" = {
    image = {
      url      = "https://images.example.com/debian-13-k8s-20261101.qcow2"
      checksum = "0000000000000000000000000000000000000000000000000000000000000000" # sha256sum of the image
    }
    vm_ids = { "pve-1" = 9101, "pve-2" = 9102, "pve-3" = 9103 }
  }
}

image_storage = "local"
disk_storage  = "local-lvm"
disk_gib      = 10
