# What must be refused before Proxmox sees it.

mock_provider "proxmox" {}

variables {
  format_version = 1
  cluster_id     = "prod"
  name           = "workers-2001"
  vm_id          = 2001
  node_name      = "pve-1"
  description    = ["numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef"]
  instance_type  = "m4x8"
  clone          = { vm_id = 9000, full = false }
  cpu            = { type = "host", sockets = 1, cores = 4 }
  memory_mib     = 8192
}

run "format_of_another_numaform" {
  command = plan
  variables {
    format_version = 2
  }
  expect_failures = [var.format_version]
}

run "vmid_out_of_range" {
  command = plan
  variables {
    vm_id = 99
  }
  expect_failures = [var.vm_id]
}

run "name_that_is_no_dns_label" {
  command = plan
  variables {
    name = "Workers_2001"
  }
  expect_failures = [var.name]
}

run "no_marker" {
  command = plan
  variables {
    description = ["a VM"]
  }
  expect_failures = [var.description]
}

run "two_markers" {
  command = plan
  variables {
    description = [
      "numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef",
      "numaform/1 cluster=prod key=ffffffffffffffffffffffffffffffff",
    ]
  }
  expect_failures = [var.description]
}

run "storage_for_a_linked_clone" {
  command = plan
  variables {
    clone = { vm_id = 9000, full = false, datastore_id = "fast" }
  }
  expect_failures = [var.clone]
}

run "template_cloned_onto_itself" {
  command = plan
  variables {
    clone = { vm_id = 2001, full = false }
  }
  expect_failures = [var.clone]
}

run "affinity_with_other_characters" {
  command = plan
  variables {
    cpu = { type = "host", sockets = 1, cores = 4, affinity = "0-3;8" }
  }
  expect_failures = [var.cpu]
}

run "numa_memory_that_does_not_add_up" {
  command = plan
  variables {
    numa = [{ cpus = "0-3", hostnodes = "0", memory_mib = 4096, policy = "bind" }]
  }
  expect_failures = [var.numa]
}

run "numa_without_host_nodes" {
  command = plan
  variables {
    numa = [{ cpus = "0-3", hostnodes = "", memory_mib = 8192, policy = "bind" }]
  }
  expect_failures = [var.numa]
}

run "numa_policy_that_proxmox_does_not_know" {
  command = plan
  variables {
    numa = [{ cpus = "0-3", hostnodes = "0", memory_mib = 8192, policy = "strict" }]
  }
  expect_failures = [var.numa]
}

run "tag_that_proxmox_would_change" {
  command = plan
  variables {
    tags = ["Team-A"]
  }
  expect_failures = [var.tags]
}
