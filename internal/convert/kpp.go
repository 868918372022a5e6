package convert

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// The API group and kinds of karpenter-provider-proxmox.
const (
	kppGroup      = "karpenter.proxmox.sinextra.dev"
	kindTemplate  = "ProxmoxTemplate"
	kindUnmanaged = "ProxmoxUnmanagedTemplate"
)

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

		// ProxmoxNodeClass.
		{oursClass, "spec.region", "ProxmoxNodeClass spec.region", "", copied},
		{oursClass, "spec.placementStrategy.zoneBalance", "ProxmoxNodeClass spec.placement.hostSelection", "Balanced also considers what is allocated to guests. AvailabilityFirst is not needed: numaform considers all hosts in one decision", kppBalance},
		{oursClass, "spec.instanceTemplateRef.kind", "", "the fields of the template become fields of the class", elsewhere},
		{oursClass, "spec.instanceTemplateRef.name", "ProxmoxNodeClass spec.template", "", elsewhere},
		{oursClass, "spec.bootDevice.size", "ProxmoxNodeClass spec.bootDevice.size", "", copied},
		{oursClass, "spec.bootDevice.storage", "ProxmoxNodeClass spec.bootDevice.storage", "", copied},
		{oursClass, "spec.tags", "ProxmoxNodeClass spec.tags", "in lower case, as Proxmox stores tags by default", kppTags},
		{oursClass, "spec.metadataOptions.type", "ProxmoxNodeClass spec.metadata.type", "", copied},
		{oursClass, "spec.metadataOptions.templatesRef.name", "ProxmoxNodeClass spec.metadata.templatesRef.name", "the Secret is copied with the changes that the report names", elsewhere},
		{oursClass, "spec.metadataOptions.templatesRef.namespace", "", "the Secret is copied to numaform's namespace", noted},
		{oursClass, "spec.metadataOptions.valuesRef.name", "ProxmoxNodeClass spec.metadata.valuesRef.name", "", elsewhere},
		{oursClass, "spec.metadataOptions.valuesRef.namespace", "", "the Secret is copied to numaform's namespace", noted},
		{oursClass, "spec.securityGroups[]", "ProxmoxNodeClass spec.securityGroups", "groups of interfaces other than net0 are not converted: add them to securityGroups of that interface in spec.networks. The other groups apply to all interfaces with firewall: true", kppGroupOf},
		{oursClass, "spec.resourcePool", "ProxmoxNodeClass spec.pool", "", copied},
	}
	for _, field := range []string{
		"cpuManagerPolicy", "cpuCFSQuota", "cpuCFSQuotaPeriod", "topologyManagerPolicy", "topologyManagerScope", "imageGCHighThresholdPercent",
		"imageGCLowThresholdPercent", "shutdownGracePeriod", "allowedUnsafeSysctls", "clusterDNS", "maxPods", "failSwapOn",
	} {
		rows = append(rows, option{oursClass, "spec.kubeletConfiguration." + field, "ProxmoxNodeClass spec.kubelet." + field, "", copied})
	}
	return slices.Concat(rows, kppTemplateRows(), kppOtherRows(), kppChart())
}

// kppTemplateRows is the part of the table about templates. Their hardware belongs to the
// classes that refer to them.
func kppTemplateRows() []option {
	const image = "not converted, because numaform's kind also requires the size of the disk, and a checksum: write a ProxmoxTemplate as docs/templates.md describes, or keep the template that exists in Proxmox, whose name the class has"
	rows := []option{
		{kindUnmanaged, "spec.region", "ProxmoxNodeClass spec.region", "", copied},
		{kindUnmanaged, "spec.templateName", "ProxmoxNodeClass spec.template.name", "", copied},
		{kindUnmanaged, "spec.tags", "ProxmoxNodeClass spec.template.tags", "", copied},
		{kindTemplate, "spec.region", "ProxmoxNodeClass spec.region", "", copied},
		{kindTemplate, "spec.description", "", "numaform writes the description of its templates", nil},
		{kindTemplate, "spec.sourceImage.url", "ProxmoxTemplate spec.image.url", image, nil},
		{kindTemplate, "spec.sourceImage.imageName", "", "numaform names the file of an image by its URL", nil},
		{kindTemplate, "spec.sourceImage.checksum", "ProxmoxTemplate spec.image.checksum", image, nil},
		{kindTemplate, "spec.sourceImage.checksumType", "ProxmoxTemplate spec.image.checksumAlgorithm", image, nil},
		{kindTemplate, "spec.storageIDs", "ProxmoxTemplate spec.image.storage, disk.storage", image, nil},
		{kindTemplate, "spec.machine", "ProxmoxTemplate spec.machine", image, nil},
		{kindTemplate, "spec.bios", "ProxmoxTemplate spec.bios", image, nil},
		{kindTemplate, "spec.tpm.version", "ProxmoxTemplate spec.tpm", image, nil},
		{kindTemplate, "spec.agent.enabled", "", "the agent is always enabled in a ProxmoxTemplate", nil},
		{kindTemplate, "spec.agent.type", "ProxmoxTemplate spec.agent.type", image, nil},
		{kindTemplate, "spec.agent.fsFreezeOnBackup", "", "the Proxmox provider of OpenTofu cannot set it", nil},
		{kindTemplate, "spec.agent.fsTrimClonedDisks", "ProxmoxTemplate spec.agent.fsTrimClonedDisks", image, nil},
		{kindTemplate, "spec.cpu.type", "ProxmoxNodeClass spec.cpuType", "", copied},
		{kindTemplate, "spec.cpu.flags", "ProxmoxNodeClass spec.hardware.cpuFlags", "", func(c *conversion, at *place) { at.put(c, signed(texts(at.value))) }},
		{kindTemplate, "spec.vga.type", "ProxmoxTemplate spec.vga.type", image, nil},
		{kindTemplate, "spec.vga.memory", "ProxmoxTemplate spec.vga.memoryMiB", image, nil},
		{kindTemplate, "spec.tags", "ProxmoxTemplate spec.tags", image, nil},
		{kindTemplate, "spec.resourcePool", "ProxmoxTemplate spec.pool", image, nil},
		{kindTemplate, "spec.onBoot", "", "numaform starts its nodes at boot, and no template", nil},
		{kindTemplate, "spec.network[].name", "", "interfaces are net0, net1 and so on, in the order of the list", kppName},
		{kindTemplate, "spec.network[].bridge", "ProxmoxNodeClass spec.networks[].bridge", "", copied},
		{kindTemplate, "spec.network[].model", "ProxmoxNodeClass spec.networks[].model", "", copied},
		{kindTemplate, "spec.network[].mtu", "ProxmoxNodeClass spec.networks[].mtu", "", copied},
		{kindTemplate, "spec.network[].vlan", "ProxmoxNodeClass spec.networks[].vlan", "", copied},
		{kindTemplate, "spec.network[].firewall", "ProxmoxNodeClass spec.networks[].firewall", "", copied},
		{kindTemplate, "spec.pciDevices[].mapping", "ProxmoxNodeClass spec.pciDevices[].mapping", "", copied},
		{kindTemplate, "spec.pciDevices[].mdev", "ProxmoxNodeClass spec.pciDevices[].mdev", "", copied},
		{kindTemplate, "spec.pciDevices[].pcie", "ProxmoxNodeClass spec.pciDevices[].pcie", "", copied},
		{kindTemplate, "spec.pciDevices[].xvga", "ProxmoxNodeClass spec.pciDevices[].xvga", "", copied},
	}
	for _, field := range []string{"address4", "address6", "gateway4", "gateway6", "dnsServers"} {
		rows = append(rows, option{kindTemplate, "spec.network[]." + field, "ProxmoxNodeClass spec.networks[].addressPools", "not converted: addresses come from address_pools in numaform.yaml, which contain the ranges, the gateway and the DNS servers, as docs/addresses.md describes", nil})
	}
	return rows
}

// kppOtherRows is the part of the table about NodePools, Secrets, files and the hosts' daemon.
func kppOtherRows() []option {
	const unpinned = "numaform-agent is configured in /etc/numaform-agent.yaml on each host: see docs/agent.md"
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
		{kindScheduler, "VERBOSITY", "", unpinned, nil},
		{kindScheduler, "PROXMOX_FEATURE_FLAGS", "", "numaform-agent publishes the topology with `numaform-agent publish`: see docs/agent.md", nil},
		{kindScheduler, "EXTRA_ARGS", "", "of its flags, cpu-governor-busy and cpu-governor-free are settings of numaform-agent; watch-path, max-retries and resync are not needed", nil},
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
	for _, name := range []string{"batchMaxDuration", "batchIdleDuration", "preferencePolicy", "minValuesPolicy"} {
		rows = append(rows, option{kindValues, "settings." + name, "values.yaml scheduling." + name, "", copied})
	}
	return append(rows, chartRows(
		"image.pullPolicy", "imagePullSecrets", "fullnameOverride", "priorityClassName", "serviceAccount.create", "serviceAccount.annotations", "serviceAccount.name",
		"podAnnotations", "podLabels", "nodeSelector", "tolerations", "resources", "hostAliases", "initContainers", "extraVolumes", "extraVolumeMounts",
	)...)
}

// chartRows are values with the same name and meaning in numaform's chart.
func chartRows(names ...string) []option {
	var rows []option
	for _, name := range names {
		rows = append(rows, option{kindValues, name, "values.yaml " + name, "", copied})
	}
	return rows
}

// kpp converts the objects of karpenter-provider-proxmox.
func (c *conversion) kpp(objects []Object) error {
	if !slices.ContainsFunc(objects, func(o Object) bool {
		return o.Group == kppGroup || o.Kind == kindConfig || o.Kind == kindValues
	}) {
		return errors.New("found no configuration of karpenter-provider-proxmox: pass its config.yaml, its manifests or its Helm values")
	}
	objects = c.kppExpand(objects)
	secrets := map[string]*Object{}
	for i := range objects {
		if o := &objects[i]; o.Kind == oursSecret {
			secrets[o.Namespace+"/"+o.Name] = o
		}
	}
	first := []string{kindValues, kindConfig, kindUnmanaged, kindTemplate, oursClass, oursPool}
	// Flags are about all classes, and about the clusters.
	last := []string{kindFlags, kindSettings, kindInstanceTypes, kindScheduler}
	c.kppKinds(objects, first)
	c.kppClasses(objects, secrets)
	c.kppKinds(objects, last)
	for i := range objects {
		o := &objects[i]
		if !slices.Contains(slices.Concat(first, last, []string{oursSecret, "ConfigMap", "Deployment"}), o.Kind) {
			c.line(o, "", Unknown, "", "not a kind of karpenter-provider-proxmox's configuration")
		}
	}
	c.finishConfig()
	return nil
}

// kppKinds converts the objects of these kinds.
func (c *conversion) kppKinds(objects []Object, kinds []string) {
	for _, kind := range kinds {
		for i := range objects {
			o := &objects[i]
			switch {
			case o.Kind != kind:
			case kind == oursPool && text(o.at("spec", "template", "spec", "nodeClassRef", "group")) != kppGroup:
				c.line(o, "", Dropped, "", "it does not use karpenter-provider-proxmox, so it stays as it is")
			default:
				c.kppObject(o)
			}
		}
	}
}

// kppObject converts one object, and what is not in its fields.
func (c *conversion) kppObject(o *Object) {
	switch o.Kind {
	case oursClass, oursPool:
		c.metadata(o)
	}
	c.walk(o)
	switch o.Kind {
	case kindInstanceTypes:
		c.rawFile(oursTypes, o.Fields["types"])
		put(c.object(oursConfig, ""), "instance_types_file", nil, oursTypes)
	case kindSettings:
		settings := c.object(oursSettings, "")
		c.rawFile(oursSettings, settings)
		put(c.object(oursConfig, ""), "topology_file", nil, oursSettings)
	}
}

// metadata copies labels and annotations, without those of controllers and tools.
func (c *conversion) metadata(o *Object) {
	for _, field := range []string{"labels", "annotations"} {
		entries, _ := o.at("metadata", field).(map[string]any)
		for _, key := range sorted(entries) {
			domain, _, _ := strings.Cut(key, "/")
			switch {
			case domain == kppGroup, domain == "meta.helm.sh", domain == "helm.sh", key == "app.kubernetes.io/managed-by", key == "kubectl.kubernetes.io/last-applied-configuration",
				strings.HasPrefix(key, "karpenter.sh/nodepool-hash"):
				continue
			}
			metadata := child(c.object(o.Kind, o.Name), "metadata")
			if metadata[field] == nil {
				metadata[field] = map[string]any{}
			}
			child(metadata, field)[key] = entries[key]
		}
	}
}

// kppExpand adds the objects that are inside others: in Helm values, Deployments, ConfigMaps
// and Secrets.
func (c *conversion) kppExpand(objects []Object) []Object {
	var all []Object
	for _, o := range objects {
		all = append(all, o)
		switch o.Kind {
		case kindValues:
			all = append(all, kppValuesObjects(&o)...)
		case "Deployment":
			c.line(&o, "", Changed, "", "only its arguments, variables and files are read: pass Helm values with -f for settings of the pods")
			all = append(all, Object{Kind: kindFlags, Name: o.Name, File: o.File, Fields: kppFlags(flagsOf(containers(&o)))})
		case "ConfigMap", oursSecret:
			all = append(all, c.kppMounted(&o)...)
		}
	}
	return all
}

// kppValuesObjects returns what a chart makes from its values.
func kppValuesObjects(o *Object) []Object {
	var made []Object
	if config := child(o.Fields, "config"); len(config) > 0 {
		made = append(made, Object{Kind: kindConfig, File: o.File, Fields: config})
	}
	kinds := map[string]string{"nodeClass": oursClass, "nodePools": oursPool, "nodeTemplate": kindUnmanaged}
	for _, key := range sorted(kinds) {
		entries := child(child(o.Fields, "customResources"), key)
		for _, name := range sorted(entries) {
			entry := child(entries, name)
			object := Object{Kind: kinds[key], Group: kppGroup, Name: name, File: o.File, Fields: map[string]any{"spec": entry["spec"]}}
			if kind := text(entry["kind"]); kind != "" {
				object.Kind = kind
			}
			if enabled, _ := entry["enabled"].(bool); enabled {
				made = append(made, object)
			}
		}
	}
	flags := flagsOf([]map[string]any{{"args": o.Fields["extraArgs"], "env": o.Fields["extraEnvs"]}})
	return append(made, Object{Kind: kindFlags, File: o.File, Fields: kppFlags(flags)})
}

// kppMounted returns the files in a ConfigMap or Secret that karpenter-provider-proxmox reads.
func (c *conversion) kppMounted(o *Object) []Object {
	var files []Object
	values := o.data()
	for _, key := range sorted(values) {
		if ext := path.Ext(key); ext != ".json" && ext != ".yaml" && ext != ".yml" {
			continue
		}
		read, err := Read(key, []byte(values[key]))
		if err != nil {
			c.line(o, key, Dropped, "", "is neither valid YAML nor JSON")
			continue
		}
		for _, file := range read {
			if file.Kind == kindConfig || file.Kind == kindSettings || file.Kind == kindInstanceTypes {
				file.Name = o.Name
				files = append(files, file)
			}
		}
	}
	return files
}

// kppFlags returns the flags among flags and variables: a variable is the flag in upper case.
// Other variables belong to the pod.
func kppFlags(all map[string]any) map[string]any {
	flags := map[string]any{}
	for _, row := range kppOptions() {
		if row.object != kindFlags {
			continue
		}
		if value, ok := all[strings.ToUpper(strings.ReplaceAll(row.path, "-", "_"))]; ok {
			flags[row.path] = value
		}
	}
	for name, value := range all {
		if name != strings.ToUpper(name) { // a flag takes precedence over its variable
			flags[name] = value
		}
	}
	return flags
}

// elsewhere is for options that are converted together with others, or under another name of
// the input.
func elsewhere(_ *conversion, at *place) { at.verdict, at.reason = Kept, "" }

// noted is for options whose row says what changes.
func noted(*conversion, *place) {}

// signed returns CPU flags with a sign. Without one, a flag is added.
func signed(flags []string) []any {
	var list []any
	for _, flag := range flags {
		if !strings.HasPrefix(flag, "+") && !strings.HasPrefix(flag, "-") {
			flag = "+" + flag
		}
		list = append(list, flag)
	}
	return list
}

// kppEnabled is for objects in Helm values.
func kppEnabled(_ *conversion, at *place) {
	fields, _ := at.value.(map[string]any)
	if enabled, _ := fields["enabled"].(bool); !enabled {
		at.drop("it is not enabled, so it does not exist")
		return
	}
	at.verdict, at.reason = Kept, ""
}

func kppTags(c *conversion, at *place) {
	var tags []any
	at.verdict, at.reason = Kept, ""
	for _, tag := range texts(at.value) {
		if strings.ToLower(tag) != tag {
			at.verdict, at.reason = Changed, at.note
		}
		tags = append(tags, strings.ToLower(tag))
	}
	at.put(c, tags)
}

// kppSecret moves a credential to a file.
func kppSecret(kind string) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		clusters, _ := at.from.Fields["clusters"].([]any)
		fields, _ := clusters[at.index[0]].(map[string]any)
		at.put(c, c.secretFile(text(fields["region"])+"-"+kind, text(at.value)))
	}
}

// kppFile refers to a file whose content is converted if it is in the input.
func kppFile(name string) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		at.put(c, name)
		at.change("copy " + path.Base(text(at.value)) + " there, unless it is in the result")
	}
}

// kppPolicy sets the placement of all classes.
func kppPolicy(c *conversion, at *place) {
	if text(at.value) != "static" {
		at.verdict, at.reason = Kept, ""
		return // Shared, without overcommit, is the default
	}
	pin := "HostAgent"
	for _, cluster := range c.clusters() {
		if text(cluster["username"]) == "root@pam" {
			pin = "Affinity"
		}
	}
	for _, class := range c.all(oursClass) {
		put(class, "spec.placement.policy", nil, "Dedicated")
		put(class, "spec.placement.pinWith", nil, pin)
	}
}

// all returns the outputs of a kind.
func (c *conversion) all(kind string) []map[string]any {
	var list []map[string]any
	for _, key := range sorted(c.out) {
		if c.out[key].kind == kind {
			list = append(list, c.out[key].fields)
		}
	}
	return list
}

// vmidsPerRegion is the size of the ranges of VMIDs.
const vmidsPerRegion = 1000

func kppVMID(c *conversion, at *place) {
	lower := 0
	if _, err := fmt.Sscan(text(at.value), &lower); err != nil || lower < 100 {
		at.drop("is no VMID")
		return
	}
	c.vmids(lower)
}

// vmids gives each region a range that does not overlap the others'.
func (c *conversion) vmids(lower int) {
	for i, cluster := range c.clusters() {
		first := lower + i*vmidsPerRegion
		cluster["vmid_range"] = map[string]any{"lower": first, "upper": first + vmidsPerRegion - 1}
	}
}

// clusters returns the Proxmox clusters of numaform.yaml.
func (c *conversion) clusters() []map[string]any {
	return mappings(c.object(oursConfig, "")["clusters"])
}

func kppGates(c *conversion, at *place) {
	for gate := range strings.SplitSeq(text(at.value), ",") {
		name, value, _ := strings.Cut(gate, "=")
		switch name {
		case "NodeRepair", "SpotToSpotConsolidation", "NodeOverlay", "CapacityBuffer", "StaticCapacity":
			put(c.object(oursChart, ""), "featureGates."+name, nil, value == "true")
		default:
			at.change(name + " has no effect in numaform")
		}
	}
}

func kppBalance(c *conversion, at *place) {
	if text(at.value) == "AvailabilityFirst" {
		at.verdict = Dropped
		return
	}
	at.put(c, "Balanced")
}

func kppGroupOf(c *conversion, at *place) {
	fields, _ := at.value.(map[string]any)
	if card := text(fields["interface"]); card != "" && card != "net0" {
		at.verdict = Dropped
		return
	}
	at.verdict, at.reason = Kept, ""
	addTo(c.spec(at.from.Name), "securityGroups", text(fields["name"]))
}

func kppName(_ *conversion, at *place) {
	if want := fmt.Sprintf("net%d", at.index[0]); text(at.value) != want {
		at.change("it becomes " + want)
		return
	}
	at.verdict, at.reason = Kept, ""
}

// kppKey returns our key for a label of theirs.
func kppKey(key string) (string, error) {
	name, theirs := strings.CutPrefix(key, kppGroup+"/")
	switch {
	case !theirs:
		return key, nil
	case name == "instance-family":
		return group + "/instance-family", nil
	case name == "instance-cpu-type":
		return group + "/cpu-type", nil
	case name == "proxmoxnodeclass":
		return group + "/nodeclass", nil
	case name == "instance-image-id":
		return "", errors.New("numaform's nodes have no label for the image: use " + group + "/template, the name of the VM template")
	}
	return "", fmt.Errorf("numaform has no label for %s", key)
}

func kppRequirement(c *conversion, at *place) {
	fields, _ := at.value.(map[string]any)
	theirs := text(fields["key"])
	key, err := kppKey(theirs)
	if err != nil {
		at.drop(err.Error())
		return
	}
	at.verdict, at.reason = Kept, ""
	if key != theirs {
		at.change("the key is " + key)
	}
	requirement := map[string]any{}
	for name, value := range fields {
		requirement[name] = value
	}
	requirement["key"] = key
	pool := c.object(oursPool, at.from.Name)
	list, _ := get(pool, "spec", "template", "spec", "requirements").([]any)
	put(pool, "spec.template.spec.requirements", nil, append(list, requirement))
}

func kppLabel(c *conversion, at *place) {
	if strings.HasPrefix(at.keys[0], kppGroup+"/") {
		at.verdict = Dropped
		return
	}
	at.verdict, at.reason = Kept, ""
	at.put(c, at.value)
}

// kppCopyBelow copies a field of a NodePool, which is Karpenter's in both.
func kppCopyBelow(c *conversion, at *place) {
	putSegments(c.object(oursPool, at.from.Name), at.segments, at.value)
}

func kppEnv(c *conversion, at *place) {
	fields, _ := at.value.(map[string]any)
	name := text(fields["name"])
	if slices.ContainsFunc(c.options, func(row option) bool {
		return row.object == kindFlags && strings.ToUpper(strings.ReplaceAll(row.path, "-", "_")) == name
	}) {
		at.change("it is converted like the flag")
		return
	}
	chart := c.object(oursChart, "")
	list, _ := chart["extraEnv"].([]any)
	chart["extraEnv"] = append(list, at.value)
}
