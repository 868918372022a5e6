package convert

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The kinds of KubeNodeSmith, in the group kubenodesmith.parawell.cloud.
const (
	knsProvider = "NodeSmithProvider"
	knsPool     = "NodeSmithPool"
	knsPlane    = "NodeSmithControlPlane"
	knsClaim    = "NodeSmithClaim"
)

// kubeNodeSmithOptions is the table of KubeNodeSmith: api/v1alpha1, the Secret of its
// credentials and the flags of cmd/main.go.
func kubeNodeSmithOptions() []option {
	rows := []option{
		{knsProvider, "spec.type", "", "", knsType},
		{knsProvider, "spec.credentialsSecretRef.name", "numaform.yaml clusters[].token_secret_file", "the secret is in a file of its own", noted},
		{knsProvider, "spec.credentialsSecretRef.namespace", "", "the secret is in a file of its own", noted},
		{knsProvider, "spec.additionalSettings", "", "KubeNodeSmith does not read it", nil},
		{knsProvider, "spec.proxmox.endpoint", "numaform.yaml clusters[].url", "", knsCluster("url")},
		{knsProvider, "spec.proxmox.nodeWhitelist", "ProxmoxNodeClass spec.hosts", "", copied},
		{knsProvider, "spec.proxmox.vmIDRange.lower", "numaform.yaml clusters[].vmid_range.lower", "the range belongs to the Proxmox cluster: with several providers of one cluster, it includes the ranges of all of them", knsRange("lower", func(a, b int64) int64 { return min(a, b) })},
		{knsProvider, "spec.proxmox.vmIDRange.upper", "numaform.yaml clusters[].vmid_range.upper", "the range belongs to the Proxmox cluster: with several providers of one cluster, it includes the ranges of all of them", knsRange("upper", func(a, b int64) int64 { return max(a, b) })},
		{knsProvider, "spec.proxmox.managedNodeTag", "ProxmoxNodeClass spec.tags", "numaform recognizes its VMs by a marker in their descriptions, not by this tag", func(c *conversion, at *place) { at.put(c, []any{strings.ToLower(text(at.value))}) }},
		{knsProvider, "spec.proxmox.vmMemOverheadMiB", "ProxmoxNodeClass spec.memoryOverheadMiB", "", copied},
		{knsProvider, "spec.proxmox.networkInterfaces[].name", "", "interfaces are net0, net1 and so on, in the order of the list", kppName},
		{knsProvider, "spec.proxmox.networkInterfaces[].model", "ProxmoxNodeClass spec.networks[].model", "", copied},
		{knsProvider, "spec.proxmox.networkInterfaces[].bridge", "ProxmoxNodeClass spec.networks[].bridge", "", copied},
		{knsProvider, "spec.proxmox.networkInterfaces[].vlanTag", "ProxmoxNodeClass spec.networks[].vlan", "", copied},
		{knsProvider, "spec.proxmox.networkInterfaces[].macPrefix", "ProxmoxNodeClass spec.networks[].macPrefix", "only three octets, the first one even: numaform derives the second half of the address from the VM", knsPrefix},
		{knsProvider, "spec.proxmox.vmOptions[]", "ProxmoxNodeClass spec", "see below", knsOption},

		{knsPool, "spec.providerRef", "NodePool spec.template.spec.nodeClassRef.name", "", elsewhere},
		{knsPool, "spec.poolLabelKey", "NodePool spec.template.metadata.labels.*", "", elsewhere},
		{knsPool, "spec.limits.minNodes", "NodePool metadata.annotations.*", "the annotation numaform.dev/min-nodes: as in KubeNodeSmith, nodes are not created to reach it", knsLimit("min")},
		{knsPool, "spec.limits.maxNodes", "NodePool spec.limits.nodes", "Karpenter compares the limit before it creates nodes, so a burst can exceed it: also set spec.limits.cpu", knsLimit("nodes")},
		{knsPool, "spec.limits.cpuCores", "NodePool spec.limits.cpu", "", knsLimit("cpu")},
		{knsPool, "spec.limits.memoryMiB", "NodePool spec.limits.memory", "", knsLimit("memory")},
		{knsPool, "spec.machineTemplate.labels.*", "NodePool spec.template.metadata.labels.*", "", copied},
		{knsPool, "spec.scaleUp.stabilizationWindow", "", "KubeNodeSmith does not read it; --batch-idle-duration of numaform controller waits for further pods", nil},
		{knsPool, "spec.scaleDown.stabilizationWindow", "NodePool spec.disruption.consolidateAfter", "the time since the last change of the pods of this node, not of the pool", copied},

		{knsPlane, "spec.pools", "", "numaform works on all NodePools that refer to a ProxmoxNodeClass", nil},
		{knsClaim, "spec.**", "", "it is a running node, not configuration", nil},
		{oursSecret, "PROXMOX_TOKEN_ID", "numaform.yaml clusters[].token_id", "", elsewhere},
		{oursSecret, "PROXMOX_SECRET", "numaform.yaml clusters[].token_secret_file", "", elsewhere},
		{oursSecret, "PROXMOX_SKIP_TLS_VERIFY", "numaform.yaml clusters[].insecure", "", elsewhere},
		{kindFlags, "metrics-bind-address", "", "numaform's chart serves metrics at :8080", nil},
		{kindFlags, "health-probe-bind-address", "", "numaform's chart serves probes at :8081", nil},
		{kindFlags, "leader-elect", "", "numaform always elects a leader", nil},
		{kindFlags, "metrics-secure", "", "numaform's metrics have no authentication: the chart's NetworkPolicy limits who reads them", nil},
	}
	for _, name := range knsOptions() {
		rows = append(rows, option{"vmOptions of " + knsProvider, name.name, name.ours, name.note, elsewhere})
		if name.ours == "" {
			rows[len(rows)-1].apply = nil
		}
	}
	return rows
}

// knsVMOption is a row about an option of vmOptions.
type knsVMOption struct{ name, ours, note string }

func knsOptions() []knsVMOption {
	const (
		cloned    = "numaform clones a template, which has this option: set it there"
		ownDrive  = "numaform does not use the cloud-init drive of Proxmox: use metadata.type cdrom with templatesRef (docs/join.md); without a seed, guests use DHCP"
		overwrite = "KubeNodeSmith overwrites it"
	)
	rows := []knsVMOption{
		{"cpu", "ProxmoxNodeClass spec.cpuType", "flags become hardware.cpuFlags"},
		{"scsi0", "ProxmoxNodeClass spec.bootDevice", "the size and the storage; the template's disk is cloned to it"},
		{"scsi1", "ProxmoxNodeClass spec.dataDisks", "the size and the storage; likewise scsi2 and so on"},
		{"hostpci0", "ProxmoxNodeClass spec.pciDevices", "only with a mapping; likewise hostpci1 and so on"},
		{"sockets", "", "numaform sets sockets and cores from the vCPUs of the node"},
		{"numa", "", "numaform sets it from the placement"},
		{"affinity", "", "numaform selects CPUs with placement.policy Dedicated or Isolated"},
		{"hugepages", "", "numaform sets it with placement.hugePages"},
		{"ide2", "", "numaform attaches its seed, with metadata.type cdrom"},
		{"cicustom", "", "use metadata.type cdrom with templatesRef, whose key user-data has the content of the snippet"},
	}
	for _, group := range []struct {
		note  string
		names []string
	}{
		{cloned, []string{
			"agent", "args", "audio0", "balloon", "bios", "boot", "efidisk0", "hookscript", "hotplug", "machine", "onboot", "ostype", "protection", "rng0", "scsihw",
			"serial0", "smbios1", "startup", "tablet", "tpmstate0", "usb0", "vga", "watchdog",
		}},
		{ownDrive, []string{"cipassword", "citype", "ciupgrade", "ciuser", "ipconfig0", "nameserver", "searchdomain", "sshkeys"}},
		{overwrite, []string{"cores", "memory", "name", "net0", "tags"}},
	} {
		for _, name := range group.names {
			rows = append(rows, knsVMOption{name, "", group.note})
		}
	}
	return rows
}

// kubeNodeSmith converts the objects of KubeNodeSmith.
func (c *conversion) kubeNodeSmith(objects []Object) error {
	secrets := map[string]*Object{}
	var providers []*Object
	for i := range objects {
		switch o := &objects[i]; o.Kind {
		case oursSecret:
			secrets[o.Namespace+"/"+o.Name] = o
		case knsProvider:
			providers = append(providers, o)
		}
	}
	if len(providers) == 0 {
		return errors.New("found no " + knsProvider + ": pass the manifests of KubeNodeSmith's objects")
	}
	// Providers with the same endpoint are one Proxmox cluster, and several classes.
	clusters := map[string]int{}
	for _, o := range providers {
		endpoint := text(o.at("spec", "proxmox", "endpoint"))
		if _, known := clusters[endpoint]; !known {
			clusters[endpoint] = len(clusters)
		}
		region := c.Region
		if clusters[endpoint] > 0 {
			region = o.Name
		}
		c.knsRegion(o, clusters[endpoint], region, secrets)
	}
	for i := range objects {
		o := &objects[i]
		switch o.Kind {
		case knsPool:
			c.knsPool(o)
		case knsPlane, knsClaim:
			c.walk(o)
		case "Deployment":
			c.walk(&Object{Kind: kindFlags, Name: o.Name, Fields: flagsOf(containers(o))})
		case oursSecret, knsProvider:
		default:
			c.line(o, "", Unknown, "", "not a kind of KubeNodeSmith's configuration")
		}
	}
	c.finishConfig()
	return nil
}

// knsRegion converts a provider to a cluster and a class.
func (c *conversion) knsRegion(o *Object, index int, region string, secrets map[string]*Object) {
	at := &place{index: []int{index}}
	config := c.object(oursConfig, "")
	put(config, "clusters[].region", at, region)
	spec := c.spec(o.Name)
	spec["region"] = region
	// KubeNodeSmith sizes each VM for its pods.
	put(spec, "sizing.policy", nil, "Flexible")
	o.cluster = index
	c.walk(o)
	if c.Template != "" {
		put(spec, "template.name", nil, c.Template)
	} else {
		c.line(o, "", Dropped, "", "KubeNodeSmith starts VMs without a template, from the network: numaform clones a template, so create one (docs/templates.md) and pass its name with --template")
	}
	namespace := text(o.at("spec", "credentialsSecretRef", "namespace"))
	name := text(o.at("spec", "credentialsSecretRef", "name"))
	secret := secrets[namespace+"/"+name]
	if secret == nil && namespace == "" {
		secret = secrets[o.Namespace+"/"+name]
	}
	if secret == nil {
		c.line(o, "spec.credentialsSecretRef", Dropped, "", "the Secret is not in the input: set token_id and token_secret_file in numaform.yaml")
		return
	}
	data := secret.data()
	for _, key := range sorted(data) {
		value := strings.TrimSpace(data[key])
		switch key {
		case "PROXMOX_TOKEN_ID":
			put(config, "clusters[].token_id", at, value)
			c.line(secret, key, Kept, "numaform.yaml clusters[].token_id", "")
		case "PROXMOX_SECRET":
			put(config, "clusters[].token_secret_file", at, c.secretFile(region+"-token", value))
			c.line(secret, key, Changed, "numaform.yaml clusters[].token_secret_file", "the secret is in a file of its own")
		case "PROXMOX_SKIP_TLS_VERIFY":
			insecure, err := boolean(value)
			if err != nil {
				c.line(secret, key, Dropped, "", err.Error())
				continue
			}
			put(config, "clusters[].insecure", at, insecure)
			c.line(secret, key, Kept, "numaform.yaml clusters[].insecure", "")
		default:
			c.line(secret, key, Unknown, "", "KubeNodeSmith does not read it")
		}
	}
}

// knsPool converts a pool to a NodePool.
func (c *conversion) knsPool(o *Object) {
	c.pool(o.Name, text(o.at("spec", "providerRef")))
	pool := c.object(oursPool, o.Name)
	key := text(o.at("spec", "poolLabelKey"))
	if key == "" {
		key = "topology.kubenodesmith.io/pool"
	}
	put(pool, "spec.template.metadata.labels.*", &place{keys: []string{key}}, o.Name)
	put(pool, "spec.disruption", nil, map[string]any{"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"})
	c.walk(o)
}

func knsType(_ *conversion, at *place) {
	if text(at.value) != "proxmox" {
		at.drop("numaform creates VMs on Proxmox only, as KubeNodeSmith does")
		return
	}
	at.verdict = Kept
}

// knsCluster sets a key of the provider's cluster.
func knsCluster(key string) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		put(c.object(oursConfig, ""), "clusters[]."+key, &place{index: []int{at.from.cluster}}, at.value)
	}
}

// knsRange extends the range of the provider's cluster.
func knsRange(end string, outer func(a, b int64) int64) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		vmid, err := strconv.ParseInt(text(at.value), 10, 64)
		if err != nil {
			at.drop("is no number")
			return
		}
		at.verdict, at.reason = Kept, ""
		cluster := c.clusters()[at.from.cluster]
		if other, ok := get(cluster, "vmid_range", end).(int64); ok && other != vmid {
			at.verdict, at.reason = Changed, at.note
			vmid = outer(vmid, other)
		}
		put(cluster, "vmid_range."+end, nil, vmid)
	}
}

var firstHalf = regexp.MustCompile(`^[0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){2}$`)

func knsPrefix(c *conversion, at *place) {
	prefix := text(at.value)
	if !firstHalf.MatchString(prefix) {
		at.verdict = Dropped
		return
	}
	at.verdict, at.reason = Kept, ""
	at.put(c, prefix)
}

func knsLimit(key string) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		n, err := strconv.ParseInt(text(at.value), 10, 64)
		switch {
		case err != nil:
			at.drop("is no number")
		case n == 0:
			at.verdict, at.reason = Kept, "" // unlimited, as without the key
		case key == "min":
			put(c.object(oursPool, at.from.Name), "metadata.annotations.*", &place{keys: []string{group + "/min-nodes"}}, strconv.FormatInt(n, 10))
		case key == "memory":
			at.put(c, fmt.Sprintf("%dMi", n))
		default:
			at.put(c, strconv.FormatInt(n, 10))
		}
	}
}

var (
	diskOf = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_.-]*):([0-9]+)(?:,|$)`)
	// numbered matches an option of which there are several.
	numbered = regexp.MustCompile(`^(scsi|hostpci|ipconfig|net|serial|usb)([1-9][0-9]*)$`)
)

// knsOption converts an option of vmOptions.
func knsOption(c *conversion, at *place) {
	fields, _ := at.value.(map[string]any)
	name, value := text(fields["name"]), text(fields["value"])
	kind := name
	if found := numbered.FindStringSubmatch(name); found != nil {
		kind = found[1] + map[bool]string{true: "1", false: "0"}[found[1] == "scsi"]
	}
	rows := knsOptions()
	i := slices.IndexFunc(rows, func(row knsVMOption) bool { return row.name == kind })
	if i < 0 {
		at.verdict, at.reason = Unknown, name+" is not an option that this version of numaform knows: see whether the template needs it"
		return
	}
	row := rows[i]
	at.ours = row.ours
	at.verdict, at.reason = Kept, ""
	spec := c.spec(at.from.Name)
	disk := diskOf.FindStringSubmatch(value)
	switch {
	case kind == "cpu":
		model, flags, _ := strings.Cut(value, ",")
		spec["cpuType"] = strings.TrimPrefix(model, "cputype=")
		if flags, ok := strings.CutPrefix(flags, "flags="); ok {
			put(spec, "hardware.cpuFlags", nil, signed(strings.Split(flags, ";")))
		} else if flags != "" {
			at.change("only the type and its flags are kept")
		}
	case strings.HasPrefix(kind, "scsi") && disk == nil:
		at.drop(name + ": is not STORAGE:SIZE")
	case kind == "scsi0":
		put(spec, "bootDevice", nil, map[string]any{"storage": disk[1], "size": disk[2] + "G"})
		at.change(row.note)
	case kind == "scsi1":
		disks, _ := spec["dataDisks"].([]any)
		spec["dataDisks"] = append(disks, map[string]any{"storage": disk[1], "size": disk[2] + "G"})
		at.change("an empty disk of this size and storage")
	case kind == "hostpci0":
		device := knsDevice(value)
		if device["mapping"] == nil {
			at.drop(name + ": numaform passes devices through by resource mappings only: create one under Datacenter > Resource Mappings")
			return
		}
		devices, _ := spec["pciDevices"].([]any)
		spec["pciDevices"] = append(devices, device)
	default:
		at.drop(name + ": " + row.note)
	}
}

// knsDevice returns a device of a class for a value such as "mapping=gpu,pcie=1".
func knsDevice(value string) map[string]any {
	device := map[string]any{}
	for part := range strings.SplitSeq(value, ",") {
		key, setting, _ := strings.Cut(part, "=")
		switch key {
		case "mapping", "mdev":
			device[key] = setting
		case "pcie":
			device[key] = setting == "1"
		case "x-vga":
			device["xvga"] = setting == "1"
		}
	}
	return device
}
