output "vm_id" {
  description = "VMID of the template, for template.vmid of a ProxmoxNodeClass."
  value       = proxmox_virtual_environment_vm.template.vm_id
}

output "name" {
  description = "Name of the template, for template.name."
  value       = proxmox_virtual_environment_vm.template.name
}

output "node_name" {
  description = "Host of the template."
  value       = proxmox_virtual_environment_vm.template.node_name
}
