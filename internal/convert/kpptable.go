package convert

import "slices"

// kppOptions is the table of karpenter-provider-proxmox v0.12.0: its CRDs
// (pkg/apis/v1alpha1), its flags (pkg/operator/options), its files, its chart
// (charts/karpenter-provider-proxmox/values.yaml) and the daemon proxmox-scheduler.
func kppOptions() []option {
	rows := []option{
		// The configuration file.
		{kindConfig, "clusters[].region", "numaform.yaml clusters[].region", "", copied},
		{kindConfig, "clusters[].url", "numaform.yaml clusters[].url", "", copied},
		{kindConfig, "clusters[].insecure", "numaform.yaml clusters[].insecure", "", copied},
		{kindConfig, "clusters[].token_id", "numaform.yaml clusters[].token_id", "", copied},
		{kindConfig, "clusters[].token_id_file", "numaform.yaml clusters[].token_id_file", "", copied},
		{kindConfig, "clusters[].token_secret", "numaform.yaml clusters[].token_secret_file", "the secret is in a file of its own", kppSecret("token")},
		{kindConfig, "clusters[].token_secret_file", "numaform.yaml clusters[].token_secret_file", "", copied},
		{kindConfig, "clusters[].username", "numaform.yaml clusters[].username", "", copied},
		{kindConfig, "clusters[].password", "numaform.yaml clusters[].password_file", "the password is in a file of its own", kppSecret("password")},
		{kindConfig, "features.provider", "", "numaform's provider IDs are always proxmox://REGION/VMID, which is the value default. With capmox, nodes have other provider IDs, and only new nodes can be numaform's", nil},

		// Flags and variables.
		{kindFlags, "cloud-config", "", "its content is converted, if the file is in the input", nil},
		{kindFlags, "instance-types-file", "numaform.yaml instance_types_file", "", kppFile(oursTypes)},
		{kindFlags, "node-setting-file", "numaform.yaml topology_file", "", kppFile(oursSettings)},
		{kindFlags, "node-policy", "ProxmoxNodeClass spec.placement", "with simple, the policy is Shared; with static, it is Dedicated, with pinWith Affinity if the login is root@pam, and otherwise HostAgent, which needs numaform-agent on the hosts", kppPolicy},
		{kindFlags, "proxmox-vmid", "numaform.yaml clusters[].vmid_range", "the range has 1000 VMIDs for each region, and its lower end is the same: enlarge it if you need more nodes", kppVMID},
		{kindFlags, "log-level", "values.yaml logLevel", "", copied},
		{kindFlags, "batch-max-duration", "values.yaml scheduling.batchMaxDuration", "", copied},
		{kindFlags, "batch-idle-duration", "values.yaml scheduling.batchIdleDuration", "", copied},
		{kindFlags, "preference-policy", "values.yaml scheduling.preferencePolicy", "", copied},
		{kindFlags, "min-values-policy", "values.yaml scheduling.minValuesPolicy", "", copied},
		{kindFlags, "feature-gates", "values.yaml featureGates", "", kppGates},
		{kindFlags, "vm-memory-overhead-percent", "", "it has no effect in karpenter-provider-proxmox. numaform's memoryOverheadMiB of the class says how much memory a guest does not report", nil},
		{kindFlags, "metrics-port", "", "numaform serves metrics at :8080", nil},
		{kindFlags, "health-probe-port", "", "numaform serves probes at :8081", nil},
		{kindFlags, "leader-election-name", "", "numaform has its own Lease, so both can run while you move", nil},
		{kindFlags, "leader-election-namespace", "", "the Lease is in numaform's namespace", nil},
		{kindFlags, "disable-leader-election", "", "numaform always elects a leader", nil},
		{kindFlags, "disable-controller-warmup", "", "numaform's controllers start when it becomes the leader, which is the default", nil},
		{kindFlags, "disable-cluster-state-observability", "values.yaml metrics.clusterState", "", kppStateMetrics},
		{kindFlags, "enable-profiling", "", "set --pprof-bind-address of numaform controller", nil},
		{kindFlags, "kube-client-qps", "", "numaform's limit is 200 requests per second, the default of karpenter-provider-proxmox", nil},
		{kindFlags, "kube-client-burst", "", "numaform's limit is 200 requests at once", nil},
		{kindFlags, "memory-limit", "", "numaform reads the limit of its container, which resources sets", nil},
		{kindFlags, "cpu-requests", "", "numaform does not need it", nil},
		{kindFlags, "log-output-paths", "", "numaform logs to stderr", nil},
		{kindFlags, "log-error-output-paths", "", "numaform logs to stderr", nil},
		{kindFlags, "karpenter-service", "", "numaform has no webhook", nil},
		{kindFlags, "ignore-dra-requests", "", "numaform ignores requests for dynamic resources, which is the default", nil},

		// ProxmoxNodeClass.
		{oursClass, "spec.region", "ProxmoxNodeClass spec.region", "", copied},
		{oursClass, "spec.placementStrategy.zoneBalance", "ProxmoxNodeClass spec.placement.hostSelection", "Balanced also considers what is allocated to guests. AvailabilityFirst is not needed: numaform considers all hosts in one decision", kppBalance},
		{oursClass, "spec.instanceTemplateRef.kind", "", "the fields of the template become fields of the class, or of a ProxmoxTemplate of numaform", elsewhere},
		{oursClass, "spec.instanceTemplateRef.name", "ProxmoxNodeClass spec.template", "with a ProxmoxTemplate that has a checksum, template.ref: numaform creates its own templates, and replaces nodes of the others. Otherwise, template.name", elsewhere},
		{oursClass, "spec.bootDevice.size", "ProxmoxNodeClass spec.bootDevice.size", "", copied},
		{oursClass, "spec.bootDevice.storage", "ProxmoxNodeClass spec.bootDevice.storage", "", copied},
		{oursClass, "spec.tags", "ProxmoxNodeClass spec.tags", "in lower case, as Proxmox stores tags by default", kppTags},
		{oursClass, "spec.metadataOptions.type", "ProxmoxNodeClass spec.metadata.type", "", copied},
		{oursClass, "spec.metadataOptions.templatesRef.name", "ProxmoxNodeClass spec.metadata.templatesRef.name", "the Secret is copied with the changes that the report names", elsewhere},
		{oursClass, "spec.metadataOptions.templatesRef.namespace", "", "the Secret is copied to numaform's namespace", noted},
		{oursClass, "spec.metadataOptions.valuesRef.name", "ProxmoxNodeClass spec.metadata.valuesRef.name", "", elsewhere},
		{oursClass, "spec.metadataOptions.valuesRef.namespace", "", "the Secret is copied to numaform's namespace", noted},
		{oursClass, "spec.securityGroups[]", "ProxmoxNodeClass spec.securityGroups, ProxmoxNodeClass spec.networks[].securityGroups", "without networks in the template, groups of net0 apply to all interfaces with firewall: true", kppGroupOf},
		{oursClass, "spec.resourcePool", "ProxmoxNodeClass spec.pool", "", copied},
	}
	rows = append(rows, same(
		oursClass, "spec.kubeletConfiguration.", oursClass+" spec.kubelet.",
		"cpuManagerPolicy", "cpuCFSQuota", "cpuCFSQuotaPeriod", "topologyManagerPolicy", "topologyManagerScope", "imageGCHighThresholdPercent",
		"imageGCLowThresholdPercent", "shutdownGracePeriod", "allowedUnsafeSysctls", "clusterDNS", "maxPods", "failSwapOn",
	)...)
	return slices.Concat(rows, kppTemplateRows(), kppOtherRows(), kppChart())
}

// kppTemplateRows is the part of the table about templates. Their CPU, network cards and
// devices belong to the classes that refer to them.
func kppTemplateRows() []option {
	rows := []option{
		{kindUnmanaged, "spec.region", "ProxmoxNodeClass spec.region", "", copied},
		{kindUnmanaged, "spec.templateName", "ProxmoxNodeClass spec.template.name", "", copied},
		{kindUnmanaged, "spec.tags", "ProxmoxNodeClass spec.template.tags", "", copied},
		{kindTemplate, "spec.region", "ProxmoxNodeClass spec.region, ProxmoxTemplate spec.region", "", copied},
		{kindTemplate, "spec.description", "", "numaform writes the description of its templates", nil},
		{kindTemplate, "spec.sourceImage.url", "ProxmoxTemplate spec.image.url", "", copied},
		{kindTemplate, "spec.sourceImage.imageName", "ProxmoxTemplate spec.image.format", "its extension; numaform names the file of an image by its URL", kppFormat},
		{kindTemplate, "spec.sourceImage.checksum", "ProxmoxTemplate spec.image.checksum", "", copied},
		{kindTemplate, "spec.sourceImage.checksumType", "ProxmoxTemplate spec.image.checksumAlgorithm", "", copied},
		{kindTemplate, "spec.storageIDs", "ProxmoxTemplate spec.image.storage, ProxmoxTemplate spec.disk.storage", "the first is for the image, and the last for the disk; karpenter-provider-proxmox selects the first with the content import, and the first with the content images: see pvesm status", kppStorages},
		{kindTemplate, "spec.agent.enabled", "ProxmoxTemplate spec.agent", "numaform always enables the agent", kppAlways},
		{kindTemplate, "spec.agent.fsFreezeOnBackup", "", "the Proxmox provider of OpenTofu cannot set it", nil},
		{kindTemplate, "spec.tpm.version", "ProxmoxTemplate spec.tpm", "", copied},
		{kindTemplate, "spec.vga.memory", "ProxmoxTemplate spec.vga.memoryMiB", "", copied},
		{kindTemplate, "spec.cpu.type", "ProxmoxNodeClass spec.cpuType", "", copied},
		{kindTemplate, "spec.cpu.flags", "ProxmoxNodeClass spec.hardware.cpuFlags", "", func(c *conversion, at *place) { at.put(c, signed(texts(at.value))) }},
		{kindTemplate, "spec.tags", "ProxmoxTemplate spec.tags", "in lower case, as Proxmox stores tags by default", kppTags},
		{kindTemplate, "spec.resourcePool", "ProxmoxTemplate spec.pool", "", copied},
		{kindTemplate, "spec.onBoot", "", "numaform always starts its nodes when their host boots", kppAlways},
		{kindTemplate, "spec.network[].name", "", "interfaces are net0, net1 and so on, in the order of the list", kppName},
		{kindTemplate, "spec.network[].address4", "numaform.yaml clusters[].address_pools, ProxmoxNodeClass spec.networks[].addressPools", "a pool for the network", kppAddress},
		{kindTemplate, "spec.network[].address6", "numaform.yaml clusters[].address_pools, ProxmoxNodeClass spec.networks[].addressPools", "a pool for the network, from which nodes get the next free address instead of one that is derived from the MAC address", kppAddress},
		{kindTemplate, "spec.network[].gateway4", "numaform.yaml clusters[].address_pools[].gateway", "", kppGateway},
		{kindTemplate, "spec.network[].gateway6", "numaform.yaml clusters[].address_pools[].gateway", "", kppGateway},
		{kindTemplate, "spec.network[].dnsServers", "numaform.yaml clusters[].address_pools[].dns_servers", "of the pools of all network cards of the template", kppServers},
	}
	for _, field := range []string{"bridge", "model", "mtu", "vlan", "firewall"} {
		rows = append(rows, option{kindTemplate, "spec.network[]." + field, "ProxmoxNodeClass spec.networks[]." + field + ", ProxmoxTemplate spec.networks[]." + field, "", copied})
	}
	return slices.Concat(
		rows,
		same(kindTemplate, "spec.", kindTemplate+" spec.", "machine", "bios", "agent.type", "agent.fsTrimClonedDisks", "vga.type"),
		same(kindTemplate, "spec.pciDevices[].", oursClass+" spec.pciDevices[].", "mapping", "mdev", "pcie", "xvga"),
	)
}

// kppOtherRows is the part of the table about NodePools, Secrets, files and the hosts' daemon.
func kppOtherRows() []option {
	const ownPace = "numaform-agent checks the host twice a second"
	return []option{
		// NodePools that refer to their classes.
		{oursPool, "spec.template.spec.nodeClassRef.group", "NodePool spec.template.spec.nodeClassRef.group", "", func(c *conversion, at *place) { at.put(c, group) }},
		{oursPool, "spec.template.spec.nodeClassRef.kind", "NodePool spec.template.spec.nodeClassRef.kind", "", copied},
		{oursPool, "spec.template.spec.nodeClassRef.name", "NodePool spec.template.spec.nodeClassRef.name", "", copied},
		{oursPool, "spec.template.spec.requirements[]", "NodePool spec.template.spec.requirements", "keys of karpenter.proxmox.sinextra.dev become numaform's: instance-family, cpu-type and nodeclass of numaform.dev; instance-image-id has none", kppRequirement},
		{oursPool, "spec.template.metadata.labels.*", "NodePool spec.template.metadata.labels.*", "without labels of karpenter.proxmox.sinextra.dev: numaform sets the labels of its own group itself", kppLabel},
		{oursPool, "spec.**", "NodePool spec.**", "", kppCopyBelow},

		// Secrets with templates and values, and the files.
		{oursSecret, "user-data", "Secret stringData.user-data", "", elsewhere},
		{oursSecret, "meta-data", "Secret stringData.meta-data", "", elsewhere},
		{oursSecret, "network-config", "Secret stringData.network-config", "", elsewhere},
		{oursSecret, "vendor-data", "Secret stringData.vendor-data", "", elsewhere},
		{oursSecret, "*", "Secret stringData.*", "", elsewhere},
		{kindSettings, "*.*.sockets", "nodes-settings.json *.*.sockets", "", copied},
		{kindSettings, "*.*.threads", "nodes-settings.json *.*.threads", "", copied},
		{kindSettings, "*.*.uncorecaches", "nodes-settings.json *.*.uncorecaches", "", copied},
		{kindSettings, "*.*.nodes.*.cpus", "nodes-settings.json *.*.nodes.*.cpus", "", copied},
		{kindSettings, "*.*.nodes.*.memsize", "nodes-settings.json *.*.nodes.*.memsize", "", copied},
		{kindSettings, "*.*.nodes.*.memory", "nodes-settings.json *.*.nodes.*.memsize", "karpenter-provider-proxmox documents the key memory, but reads memsize", copied},
		{kindSettings, "*.*.reservedcpus", "nodes-settings.json *.*.reservedcpus", "", copied},
		{kindSettings, "*.*.reservedmemory", "nodes-settings.json *.*.reservedmemory", "", copied},
		{kindInstanceTypes, "types[].name", "instance-types.json [].name", "", elsewhere},
		{kindInstanceTypes, "types[].capacity.*", "instance-types.json [].capacity.*", "", elsewhere},
		{kindInstanceTypes, "types[].capacitytype", "instance-types.json [].capacitytype", "", elsewhere},
		{kindInstanceTypes, "types[].overhead.**", "instance-types.json [].overhead", "", elsewhere},
		{kindInstanceTypes, "types[].offerings", "", "numaform reads the hosts from Proxmox", nil},

		// The daemon on the hosts.
		{kindScheduler, "VERBOSITY", "", "numaform-agent logs each change", nil},
		{kindScheduler, "WATCH_PATH", "", ownPace, nil},
		{kindScheduler, "MAX_RETRIES", "", ownPace, nil},
		{kindScheduler, "RESYNC_INTERVAL", "", ownPace, nil},
		{kindScheduler, "CPU_GOVERNOR_BUSY", "numaform-agent.yaml governor.pinned", "", copied},
		{kindScheduler, "CPU_GOVERNOR_FREE", "numaform-agent.yaml governor.unpinned", "", copied},
		{kindScheduler, "EXTRA_ARGS", "numaform-agent.yaml governor", "the flags cpu-governor-busy and cpu-governor-free; the others are not needed", kppDaemonFlags},
		{kindScheduler, "PROXMOX_FEATURE_FLAGS", "", "the feature karpenter is the command `numaform-agent publish`: see docs/agent.md", nil},
	}
}

// kppChart is the part of the table about the values of the Helm chart.
func kppChart() []option {
	const content = "converted like the file or object that the chart writes"
	rows := []option{
		{kindValues, "config.**", "numaform.yaml", content, elsewhere},
		{kindValues, "customResources.nodeClass.*", "ProxmoxNodeClass", content, kppEnabled},
		{kindValues, "customResources.nodePools.*", "NodePool", content, kppEnabled},
		{kindValues, "customResources.nodeTemplate.*", "ProxmoxNodeClass", content, kppEnabled},
		{kindValues, "extraArgs[]", "", "converted like the flag", elsewhere},
		{kindValues, "extraEnvs[]", "values.yaml extraEnv[]", "", kppEnv},
		{kindValues, "existingConfigSecret", "values.yaml secret.existing", "create a Secret with the files of secrets/, and set its name: numaform.yaml itself contains no secret", nil},
		{kindValues, "existingConfigSecretKey", "", "numaform.yaml is not in the Secret", nil},
		{kindValues, "configFile", "", "the chart chooses the path", nil},
		{kindValues, "replicaCount", "values.yaml replicas", "", copied},
		{kindValues, "logVerbosityLevel", "values.yaml logLevel", "", copied},
		{kindValues, "settings.vmMemoryOverheadPercent", "", "it has no effect in karpenter-provider-proxmox. numaform's memoryOverheadMiB of the class says how much memory a guest does not report", nil},
		{kindValues, "settings.featureGates.nodeRepair", "values.yaml featureGates.NodeRepair", "", copied},
		{kindValues, "settings.featureGates.spotToSpotConsolidation", "values.yaml featureGates.SpotToSpotConsolidation", "", copied},
		{kindValues, "settings.featureGates.reservedCapacity", "", "reservations do not exist in Proxmox; instance types with the capacity type reserved work without the gate", nil},
		{kindValues, "metrics.enabled", "", "numaform always serves metrics", nil},
		{kindValues, "metrics.port", "", "numaform serves metrics at :8080", nil},
		{kindValues, "metrics.type", "values.yaml metrics.serviceMonitor.enabled", "numaform's chart has a Service with annotations, or a ServiceMonitor", nil},
		{kindValues, "updateStrategy.**", "", "two replicas with a leader election; the chart chooses the strategy", nil},
		{kindValues, "podSecurityContext.**", "", "the chart always runs numaform as a user without privileges", nil},
		{kindValues, "securityContext.**", "", "the chart always runs numaform as a user without privileges", nil},
		{kindValues, "nameOverride", "", "set fullnameOverride", nil},
		{kindValues, "image.repository", "", "it is another program", nil},
		{kindValues, "image.tag", "", "it is another program", nil},
	}
	rows = append(rows, option{kindValues, "affinity", "values.yaml affinity", "required rules for nodes belong into nodeSelector", copied})
	return slices.Concat(
		rows,
		same(kindValues, "settings.", oursChart+" scheduling.", "batchMaxDuration", "batchIdleDuration", "preferencePolicy", "minValuesPolicy"),
		same(
			kindValues, "", oursChart+" ",
			"image.pullPolicy", "imagePullSecrets", "fullnameOverride", "priorityClassName", "serviceAccount.create", "serviceAccount.annotations", "serviceAccount.name",
			"podAnnotations", "podLabels", "nodeSelector", "tolerations", "resources", "hostAliases", "initContainers", "extraVolumes", "extraVolumeMounts",
		),
	)
}

// same are options with the same names in theirs and in ours, which mean the same.
func same(object, theirs, ours string, names ...string) []option {
	var rows []option
	for _, name := range names {
		rows = append(rows, option{object, theirs + name, ours + name, "", copied})
	}
	return rows
}
