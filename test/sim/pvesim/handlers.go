package pvesim

// handlers returns the implemented methods, by "METHOD /path" as in the schema.
func handlers() map[string]handler {
	table := map[string]handler{}
	for _, part := range []map[string]handler{accessHandlers(), clusterHandlers(), nodeHandlers(), guestHandlers(), storageHandlers(), agentHandlers()} {
		for name, handle := range part {
			table[name] = handle
		}
	}
	return table
}

func accessHandlers() map[string]handler {
	return map[string]handler{
		"GET /version":            version,
		"GET /access":             subdirs("subdir", "users", "groups", "domains", "acl", "roles", "ticket", "permissions"),
		"GET /access/acl":         listACL,
		"GET /access/permissions": getPermissions,
		"GET /access/roles":       listRoles,
		"GET /access/ticket":      func(*request) (any, error) { return nil, nil },
		"POST /access/ticket":     login,
		"GET /access/users":       listUsers,

		"POST /access/users":                            createUser,
		"DELETE /access/users/{userid}":                 deleteUser,
		"POST /access/users/{userid}/token/{tokenid}":   createToken,
		"DELETE /access/users/{userid}/token/{tokenid}": deleteToken,
		"POST /access/roles":                            createRole,
		"DELETE /access/roles/{roleid}":                 deleteRole,
		"PUT /access/acl":                               putACL,

		"GET /pools":             listPools,
		"POST /pools":            createPool,
		"PUT /pools":             updatePool,
		"DELETE /pools":          deletePool,
		"GET /pools/{poolid}":    getPool,
		"PUT /pools/{poolid}":    updatePool,
		"DELETE /pools/{poolid}": deletePool,
	}
}

func clusterHandlers() map[string]handler {
	return map[string]handler{
		"GET /cluster/firewall/groups":    subdirs("group"),
		"GET /cluster/firewall/options":   clusterFirewall,
		"GET /cluster/ha/resources":       listHA,
		"GET /cluster/ha/resources/{sid}": getHA,
		"GET /cluster/mapping/pci":        listPCIMappings,
		"GET /cluster/nextid":             nextID,
		"GET /cluster/options":            clusterOptions,
		"GET /cluster/resources":          clusterResources,
		"GET /cluster/status":             clusterStatus,
		"GET /cluster/tasks":              clusterTasks,
	}
}

func nodeHandlers() map[string]handler {
	return map[string]handler{
		"GET /nodes":        listNodes,
		"GET /nodes/{node}": subdirs("name", "qemu", "lxc", "status", "storage", "tasks", "report", "config", "network", "query-url-metadata"),
		"GET /nodes/{node}/capabilities/qemu/cpu": listCPUModels,
		"GET /nodes/{node}/config":                nodeConfig,
		"PUT /nodes/{node}/config":                putNodeConfig,
		"GET /nodes/{node}/hardware":              subdirs("type", "pci", "usb"),
		"GET /nodes/{node}/hardware/pci":          subdirs("id"),
		"GET /nodes/{node}/hardware/usb":          subdirs("id"),
		"GET /nodes/{node}/journal":               nodeJournal,
		"GET /nodes/{node}/network":               listNetwork,
		"GET /nodes/{node}/query-url-metadata":    queryURL,
		"GET /nodes/{node}/report":                nodeReport,
		"GET /nodes/{node}/status":                nodeStatus,
		"GET /nodes/{node}/tasks":                 nodeTasks,
		"GET /nodes/{node}/tasks/{upid}":          taskIndex,
		"DELETE /nodes/{node}/tasks/{upid}":       stopTask,
		"GET /nodes/{node}/tasks/{upid}/log":      taskLog,
		"GET /nodes/{node}/tasks/{upid}/status":   taskStatus,
		"GET /nodes/{node}/time":                  nodeTime,
		"GET /nodes/{node}/version":               version,
	}
}

func guestHandlers() map[string]handler {
	const vm = "/nodes/{node}/qemu/{vmid}"
	return map[string]handler{
		"GET /nodes/{node}/lxc":                       listGuests(GuestContainer),
		"GET /nodes/{node}/lxc/{vmid}":                subdirs("subdir", "config", "status"),
		"GET /nodes/{node}/lxc/{vmid}/config":         getContainerConfig,
		"GET /nodes/{node}/lxc/{vmid}/status/current": containerStatus,
		"GET /nodes/{node}/qemu":                      listGuests(GuestVM),
		"POST /nodes/{node}/qemu":                     createVM,
		"GET " + vm:                                   subdirs("subdir", "config", "cloudinit", "pending", "status", "migrate", "resize", "agent", "snapshot", "firewall"),
		"DELETE " + vm:                                destroyVM,
		"POST " + vm + "/clone":                       cloneVM,
		"GET " + vm + "/cloudinit":                    cloudinitPending,
		"PUT " + vm + "/cloudinit":                    regenerateCloudinit,
		"GET " + vm + "/config":                       getConfig,
		"POST " + vm + "/config":                      postConfig,
		"PUT " + vm + "/config":                       putConfig,
		"GET " + vm + "/feature":                      vmFeature,
		"GET " + vm + "/firewall":                     subdirs("name", "rules", "options", "aliases", "ipset"),
		"GET " + vm + "/firewall/aliases":             subdirs("name"),
		"GET " + vm + "/firewall/ipset":               subdirs("name"),
		"GET " + vm + "/firewall/options":             getFirewallOptions,
		"PUT " + vm + "/firewall/options":             putFirewallOptions,
		"GET " + vm + "/firewall/rules":               listFirewallRules,
		"POST " + vm + "/firewall/rules":              addFirewallRule,
		"GET " + vm + "/firewall/rules/{pos}":         getFirewallRule,
		"PUT " + vm + "/firewall/rules/{pos}":         putFirewallRule,
		"DELETE " + vm + "/firewall/rules/{pos}":      deleteFirewallRule,
		"GET " + vm + "/migrate":                      migratePreconditions,
		"POST " + vm + "/migrate":                     migrateVM,
		"GET " + vm + "/pending":                      getPending,
		"PUT " + vm + "/resize":                       resizeDisk,
		"GET " + vm + "/snapshot":                     listSnapshots,
		"GET " + vm + "/status":                       statusIndex,
		"GET " + vm + "/status/current":               currentStatus,
		"POST " + vm + "/status/reboot":               rebootVM,
		"POST " + vm + "/status/reset":                resetVM,
		"POST " + vm + "/status/shutdown":             shutdownVM,
		"POST " + vm + "/status/start":                startVM,
		"POST " + vm + "/status/stop":                 stopVM,
		"POST " + vm + "/template":                    makeTemplate,
	}
}

func storageHandlers() map[string]handler {
	const st = "/nodes/{node}/storage/{storage}"
	return map[string]handler{
		"GET /storage":                       clusterStorage,
		"GET /storage/{storage}":             getStorage,
		"GET /nodes/{node}/storage":          listNodeStorage,
		"GET " + st:                          subdirs("subdir", "content", "download-url", "status", "upload"),
		"GET " + st + "/content":             listContent,
		"GET " + st + "/content/{volume}":    getVolume,
		"DELETE " + st + "/content/{volume}": deleteVolume,
		"GET " + st + "/status":              getStorageStatus,
		"POST " + st + "/download-url":       downloadURL,
		"POST " + st + "/upload":             uploadFile,
	}
}

func agentHandlers() map[string]handler {
	const agent = "/nodes/{node}/qemu/{vmid}/agent"
	table := map[string]handler{"GET " + agent: subdirs("subdir", "ping", "network-get-interfaces"), "POST " + agent: guestAgent}
	for _, name := range []string{
		"exec-status", "file-read", "get-fsinfo", "get-host-name", "get-memory-block-info", "get-memory-blocks", "get-osinfo",
		"get-time", "get-timezone", "get-users", "get-vcpus", "info", "network-get-interfaces",
	} {
		table["GET "+agent+"/"+name] = guestAgent
	}
	for _, name := range []string{
		"exec", "file-write", "fsfreeze-freeze", "fsfreeze-status", "fsfreeze-thaw", "fstrim", "ping", "set-user-password",
		"shutdown", "suspend-disk", "suspend-hybrid", "suspend-ram",
	} {
		table["POST "+agent+"/"+name] = guestAgent
	}
	return table
}
