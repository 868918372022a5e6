output "vm_id" {
  description = "VMID of the VM."
  value       = proxmox_virtual_environment_vm.node.vm_id
}

output "name" {
  description = "Name of the VM and of its Kubernetes Node."
  value       = proxmox_virtual_environment_vm.node.name
}

output "node_name" {
  description = "Proxmox host that the VM is on."
  value       = proxmox_virtual_environment_vm.node.node_name
}
