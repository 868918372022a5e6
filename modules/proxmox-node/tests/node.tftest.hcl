# Settings of every VM, including those that keep the provider from affecting other VMs.

mock_provider "proxmox" {}

variables {
  format_version = 1
  cluster_id     = "prod"
  name           = "workers-2001"
  vm_id          = 2001
  node_name      = "pve-1"
  description = [
    "numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef",
    "Pool workers.",
  ]
  instance_type = "m4x8"
  clone         = { vm_id = 9000, full = false }
  cpu           = { type = "host", sockets = 1, cores = 4 }
  memory_mib    = 8192
}

run "never_touches_what_is_not_its_own" {
  assert {
    condition     = proxmox_virtual_environment_vm.node.clone[0].retries == 1
    error_message = "With more than one try the provider takes over a foreign VM."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.vm_id == 2001
    error_message = "The VMID must be the reserved one."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.clone[0].node_name == "pve-1"
    error_message = "The template must be taken from the VM's own host."
  }
}

run "never_power_cycles_and_never_waits_for_an_agent" {
  assert {
    condition     = !proxmox_virtual_environment_vm.node.reboot_after_update && !proxmox_virtual_environment_vm.node.reboot
    error_message = "The provider would power-cycle a node without draining it."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.agent[0].wait_for_ip[0].disabled
    error_message = "A dead guest agent would hold up every plan."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.agent[0].timeout == "10s"
    error_message = "The agent's timeout must be short."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.stop_on_destroy
    error_message = "A drained VM is stopped, not shut down."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.migrate
    error_message = "A VM that was moved by hand would be replaced."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.started && proxmox_virtual_environment_vm.node.on_boot
    error_message = "A node runs, also after its host restarted."
  }
}

run "marker_of_a_vm_that_the_host_agent_pins" {
  command = plan

  variables {
    description = ["numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef pins=4,36,5,37 emulator=shared"]
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.description == "numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef pins=4,36,5,37 emulator=shared"
    error_message = "The host agent must find pins and emulator in the description."
  }
}

run "plain_vm" {
  assert {
    condition     = proxmox_virtual_environment_vm.node.description == "numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef\nPool workers."
    error_message = "The description must be the given lines."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.tags == tolist(["numaform", "numaform-prod"])
    error_message = "numaform's own tags must be there."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.cpu[0].affinity == null
    error_message = "A token may not set affinity, so none must be written."
  }
  assert {
    condition     = !proxmox_virtual_environment_vm.node.cpu[0].numa && length(proxmox_virtual_environment_vm.node.numa) == 0
    error_message = "Without cells the guest sees no NUMA nodes."
  }
  assert {
    condition     = length(proxmox_virtual_environment_vm.node.disk) == 0
    error_message = "Without a larger disk there must be no resize."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.memory[0].floating == 0
    error_message = "Ballooning must be off."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.memory[0].hugepages == null && proxmox_virtual_environment_vm.node.memory[0].keep_hugepages == null
    error_message = "A token may not set huge pages, so none must be written."
  }
  assert {
    condition     = length(proxmox_virtual_environment_vm.node.hostpci) == 0
    error_message = "Without pci_devices the VM must have none."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.scsi_hardware == "lsi"
    error_message = "A template without scsihw has Proxmox' default, lsi."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.timeout_clone == 1800 && proxmox_virtual_environment_vm.node.timeout_start_vm == 300 && proxmox_virtual_environment_vm.node.timeout_stop_vm == 300
    error_message = "Whose file names no timeouts waits as long as ever."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.operating_system[0].type == "other"
    error_message = "A template without ostype has Proxmox' default, other."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.smbios[0].serial == "workers-2001/2001" && proxmox_virtual_environment_vm.node.smbios[0].product == "m4x8"
    error_message = "The guest must be able to read who it is."
  }
}

run "waits_as_long_as_it_is_told" {
  variables {
    timeouts = { create = 5400, delete = 900 }
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.timeout_clone == 5400 && proxmox_virtual_environment_vm.node.timeout_start_vm == 300
    error_message = "A slow clone must get its time, and the start what it has by default."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.timeout_stop_vm == 900 && proxmox_virtual_environment_vm.node.timeout_shutdown_vm == 900
    error_message = "A slow removal must get its time."
  }
}

run "pinned_to_two_numa_nodes" {
  variables {
    cpu = { type = "host", sockets = 2, cores = 2, affinity = "2-3,10-11" }
    numa = [
      { cpus = "0-1", hostnodes = "0", memory_mib = 4096, policy = "bind" },
      { cpus = "2-3", hostnodes = "1;3", memory_mib = 4096, policy = "interleave" },
    ]
    tags    = ["zeta", "alpha", "numaform"]
    pool_id = "k8s"
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.cpu[0].affinity == "2-3,10-11" && proxmox_virtual_environment_vm.node.cpu[0].numa
    error_message = "Affinity and numa must be set."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.numa[*].device == tolist(["numa0", "numa1"])
    error_message = "NUMA devices must be numbered from 0 without gaps."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.numa[*].hostnodes == tolist(["0", "1;3"])
    error_message = "Each NUMA device must name its host nodes."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.tags == tolist(["alpha", "numaform", "numaform-prod", "zeta"])
    error_message = "Tags must be sorted and unique."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.pool_id == "k8s"
    error_message = "The resource pool must be set."
  }
}

run "huge_pages_stay_reserved" {
  variables {
    numa      = [{ cpus = "0-3", hostnodes = "1", memory_mib = 8192, policy = "bind" }]
    hugepages = "1024"
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.memory[0].hugepages == "1024" && proxmox_virtual_environment_vm.node.memory[0].keep_hugepages
    error_message = "Huge pages must be set, and kept when the VM stops."
  }
}

run "network_queues_follow_the_vcpus" {
  variables {
    cpu = { type = "host", sockets = 2, cores = 40 }
    network_devices = [
      { bridge = "vmbr0" },
      { bridge = "vmbr1", model = "e1000", vlan_id = 12, mtu = 1, firewall = true, mac_address = "BC:24:11:00:00:01" },
    ]
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.network_device[*].queues == tolist([64, 0])
    error_message = "A virtio device has one queue per vCPU, at most 64; others have none."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.network_device[1].vlan_id == 12 && proxmox_virtual_environment_vm.node.network_device[1].firewall
    error_message = "VLAN and firewall must reach the device."
  }
  assert {
    condition     = proxmox_virtual_environment_vm.node.network_device[1].mac_address == "BC:24:11:00:00:01"
    error_message = "A MAC address that is said must reach the device."
  }
}

run "no_seed_no_drive" {
  assert {
    condition     = length(proxmox_virtual_environment_vm.node.cdrom) == 0
    error_message = "Without a seed the template's drives must be left alone."
  }
}
