# Invalid inputs that the plan must reject before any request to Proxmox.

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

run "marker_of_another_cluster" {
  command = plan
  variables {
    cluster_id = "test"
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

run "marker_with_an_unknown_emulator" {
  command = plan
  variables {
    description = ["numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef pins=4,5 emulator=host"]
  }
  expect_failures = [var.description]
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

run "tag_that_proxmox_would_change" {
  command = plan
  variables {
    tags = ["Team-A"]
  }
  expect_failures = [var.tags]
}

run "disk_interface_that_proxmox_does_not_know" {
  command = plan
  variables {
    disk = { interface = "hda", datastore_id = "local", size_gib = 20 }
  }
  expect_failures = [var.disk]
}
