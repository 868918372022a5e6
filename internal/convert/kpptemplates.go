package convert

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kppTemplate sets what the CRD of karpenter-provider-proxmox sets by default, if it differs
// from numaform's defaults.
func (c *conversion) kppTemplate(o *Object) {
	object := c.object(kindTemplate, o.Name)
	if object["spec"] == nil {
		object["spec"] = map[string]any{}
	}
	template := child(object, "spec")
	if template["machine"] == nil {
		template["machine"] = "q35"
	}
	if get(template, "vga", "type") == nil {
		put(template, "vga.type", nil, "std")
	}
	if tpm, ok := o.at("spec", "tpm").(map[string]any); ok && tpm["version"] == nil {
		template["tpm"] = "v2.0"
	}
	class := c.object(fragment, o.String())
	if get(class, "spec", "cpuType") == nil {
		put(class, "spec.cpuType", nil, "x86-64-v2-AES")
	}
	for _, network := range slices.Concat(mappings(template["networks"]), mappings(get(class, "spec", "networks"))) {
		if model := text(network["model"]); network["mtu"] == nil && (model == "" || model == "virtio") {
			network["mtu"] = 1500
		}
	}
}

// kppDiskGiB is the default size of boot disks of karpenter-provider-proxmox.
const kppDiskGiB = 30

// kppTemplateOf sets the template of a class: numaform's ProxmoxTemplate if it is complete,
// and otherwise the VM template that karpenter-provider-proxmox names like its object:
// pkg/providers/instancetemplate/utils.go.
func (c *conversion) kppTemplateOf(o *Object, spec map[string]any, name string) {
	spec["template"] = map[string]any{"name": name}
	out := c.out[kindTemplate+"/"+name]
	if out == nil {
		return
	}
	// The disks of all clones are at least as large as in their classes, so the image
	// fits into the smallest of these.
	size := kppDiskGiB
	if found := regexp.MustCompile(`^([0-9]+)([GT])i?$`).FindStringSubmatch(text(get(spec, "bootDevice", "size"))); found != nil {
		size, _ = strconv.Atoi(found[1])
		if found[2] == "T" {
			size *= 1024
		}
	}
	template := child(out.fields, "spec")
	if other, ok := get(template, "disk", "sizeGiB").(int); ok {
		size = min(size, other)
	}
	put(template, "disk.sizeGiB", nil, size)
	if len(kppLacks(name, template)) == 0 {
		spec["template"] = map[string]any{"ref": name}
		c.line(o, "spec.instanceTemplateRef", Changed, oursClass+" spec.template.ref", "numaform creates templates of its own, when it runs: nodes of the existing template are replaced within the budgets of their NodePools. To keep them, set template.name to "+name)
	}
}

var templateName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,52}[a-z0-9])?$`)

// kppLacks returns what a ProxmoxTemplate of numaform requires, but this one lacks.
func kppLacks(name string, template map[string]any) []string {
	var lacks []string
	url, checksum := text(get(template, "image", "url")), text(get(template, "image", "checksum"))
	algorithm := cmp.Or(text(get(template, "image", "checksumAlgorithm")), "sha256")
	digits := map[string]int{"md5": 32, "sha1": 40, "sha224": 56, "sha256": 64, "sha384": 96, "sha512": 128}[algorithm]
	if len(checksum) != digits {
		lacks = append(lacks, fmt.Sprintf("set spec.image.checksum to the %s of the image", algorithm))
	}
	switch {
	case url == "":
		lacks = append(lacks, "set spec.image.url")
	case slices.Contains([]string{".xz", ".zst", ".gz", ".bz2", ".lzo"}, path.Ext(url)):
		lacks = append(lacks, "unpack the image and set spec.image.url to the result, because Proxmox does not unpack images")
	}
	if text(get(template, "image", "storage")) == "" {
		lacks = append(lacks, "set spec.image.storage and spec.disk.storage")
	}
	if len(mappings(template["networks"])) == 0 {
		lacks = append(lacks, "set spec.networks")
	}
	if !templateName.MatchString(name) {
		lacks = append(lacks, "change metadata.name to at most 54 characters a-z, 0-9 and -")
	}
	return lacks
}

// kppUnused moves templates that are not complete to a file of their own.
func (c *conversion) kppUnused() {
	for _, key := range sorted(c.out) {
		out := c.out[key]
		if out.kind != kindTemplate {
			continue
		}
		template := child(out.fields, "spec")
		if get(template, "disk", "sizeGiB") == nil {
			put(template, "disk.sizeGiB", nil, kppDiskGiB)
		}
		lacks := kppLacks(out.name, template)
		if len(lacks) == 0 {
			continue
		}
		delete(c.out, key)
		out.kind = unfinished
		out.comment = "# Unfinished: " + strings.Join(lacks, "; ") + ".\n# Then move the object to manifests/, and set template.ref of the classes, instead of template.name.\n"
		c.out[unfinished+"/"+out.name] = out
		c.line(&Object{Kind: kindTemplate, Name: out.name}, "", Changed, "unfinished-templates.yaml",
			"classes use the existing VM template by its name. For a template of numaform: "+strings.Join(lacks, "; "))
	}
}

// kppFormat sets the format of the image, which is the extension of its name there.
func kppFormat(c *conversion, at *place) {
	format := strings.TrimPrefix(path.Ext(text(at.value)), ".")
	if !slices.Contains([]string{"qcow2", "raw", "vmdk"}, format) {
		at.drop("has no extension qcow2, raw or vmdk: set image.format")
		return
	}
	at.put(c, format)
}

func kppStorages(c *conversion, at *place) {
	storages := texts(at.value)
	if len(storages) == 0 {
		at.drop("is empty")
		return
	}
	if len(storages) == 1 {
		at.verdict, at.reason = Kept, ""
	}
	template := c.object(kindTemplate, at.from.Name)
	put(template, "spec.image.storage", nil, storages[0])
	put(template, "spec.disk.storage", nil, storages[len(storages)-1])
}

// kppAlways is for options that numaform always enables.
func kppAlways(_ *conversion, at *place) {
	if is, _ := at.value.(bool); !is {
		at.verdict = Dropped
		return
	}
	at.verdict, at.reason = Kept, ""
}

// kppNetwork returns the network of an address of a network card, if karpenter-provider-proxmox
// assigns addresses from it: pkg/providers/instance/instance_network.go.
func kppNetwork(value any) (netip.Prefix, bool) {
	network, err := netip.ParsePrefix(text(value))
	return network, err == nil && network == network.Masked()
}

// poolName returns the name of the address pool of a network.
func poolName(network netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace("net-" + network.String())
}

// kppPool returns the address pool of an address of a network card, which it creates if
// necessary, or nil and the reason why there is none.
func (c *conversion) kppPool(o *Object, address any) (map[string]any, string) {
	network, ok := kppNetwork(address)
	if !ok {
		return nil, "is not a network, so karpenter-provider-proxmox assigns no address: the card uses DHCP"
	}
	region := text(o.at("spec", "region"))
	var clusters []map[string]any
	for _, cluster := range c.clusters() {
		if region == "" || region == cluster["region"] {
			clusters = append(clusters, cluster)
		}
	}
	switch {
	case len(clusters) == 0:
		return nil, "the configuration of its region is not in the input: add " + poolName(network) + " to address_pools there, and to addressPools in networks of the class"
	case len(clusters) > 1:
		return nil, "nodes of several regions get addresses of this network: give each region a pool " + poolName(network) + " with other ranges in address_pools, and add it to addressPools in networks of the class"
	}
	pools := mappings(clusters[0]["address_pools"])
	i := slices.IndexFunc(pools, func(pool map[string]any) bool { return pool["name"] == poolName(network) })
	if i >= 0 {
		return pools[i], ""
	}
	pool := map[string]any{"name": poolName(network), "subnet": network.String()}
	list, _ := clusters[0]["address_pools"].([]any)
	clusters[0]["address_pools"] = append(list, pool)
	return pool, ""
}

// kppCard returns the network card of the template.
func kppCard(at *place) map[string]any {
	return mappings(at.from.at("spec", "network"))[at.index[0]]
}

// kppAddress gives the nodes an address of a pool.
func kppAddress(c *conversion, at *place) {
	value := text(at.value)
	if value == "dhcp" && strings.HasSuffix(at.path, "4") || value == "auto" {
		at.verdict, at.reason = Kept, "" // as without pools
		return
	}
	if value == "dhcp" {
		at.drop("numaform's network-config has DHCP for IPv4 only: write your own (docs/join.md)")
		return
	}
	pool, reason := c.kppPool(at.from, at.value)
	if pool == nil {
		at.drop(reason)
		return
	}
	class := c.object(fragment, at.from.String())
	var names []any
	if cards, _ := get(class, "spec", "networks").([]any); len(cards) > at.index[0] {
		card, _ := cards[at.index[0]].(map[string]any)
		names, _ = card["addressPools"].([]any)
	}
	put(class, "spec.networks[].addressPools", at, append(names, pool["name"]))
	gateway := "gateway" + at.path[len(at.path)-1:]
	if text(kppCard(at)[gateway]) == "" {
		at.change("without " + gateway + ", karpenter-provider-proxmox uses the address of the host's bridge: set gateway of the pool, if nodes need it")
	}
}

// kppGateway sets the gateway of the pool of the card's address.
func kppGateway(c *conversion, at *place) {
	pool, reason := c.kppPool(at.from, kppCard(at)["address"+at.path[len(at.path)-1:]])
	if pool == nil {
		at.drop("the card has no pool: " + reason)
		return
	}
	network, gateway := netip.MustParsePrefix(text(pool["subnet"])), text(at.value)
	address, err := netip.ParseAddr(gateway)
	switch {
	case err != nil || !network.Contains(address):
		at.drop("is not in " + network.String())
	case pool["gateway"] != nil && pool["gateway"] != gateway:
		at.drop("another template has another gateway for " + network.String())
	default:
		pool["gateway"] = gateway
	}
}

// kppServers adds DNS servers to the pools of all cards: there, they are the ones of the VM.
func kppServers(c *conversion, at *place) {
	found := false
	for _, card := range mappings(at.from.at("spec", "network")) {
		for _, address := range []any{card["address4"], card["address6"]} {
			if _, ok := kppNetwork(address); !ok {
				continue
			}
			if pool, _ := c.kppPool(at.from, address); pool != nil {
				addTo(pool, "dns_servers", texts(at.value)...)
				found = true
			}
		}
	}
	if !found {
		at.drop("no card has a pool, so nodes get their DNS servers by DHCP, or from your own network-config (docs/join.md)")
	}
}

// kppStatic removes address pools from classes whose nodes read no seed.
func (c *conversion) kppStatic(o *Object, spec map[string]any) {
	// Classes with the same template must not share its cards.
	var cards []any
	used := false
	for _, card := range mappings(spec["networks"]) {
		card = maps.Clone(card)
		if card["addressPools"] != nil && text(get(spec, "metadata", "type")) != "cdrom" {
			delete(card, "addressPools")
			used = true
		}
		cards = append(cards, card)
	}
	if cards != nil {
		spec["networks"] = cards
	}
	if used {
		c.line(o, "spec.metadataOptions.type", Dropped, "", "without a seed, guests do not learn their static addresses, so the class has no addressPools and nodes use DHCP: set metadata.type cdrom and addressPools")
	}
}

// templateVMIDs gives each region a range for templates, after the ranges for nodes.
func (c *conversion) templateVMIDs() {
	const perRegion = 100
	next := 0
	for _, cluster := range c.clusters() {
		upper, _ := get(cluster, "vmid_range", "upper").(int)
		next = max(next, upper+1)
	}
	for _, cluster := range c.clusters() {
		cluster["template_vmid_range"] = map[string]any{"lower": next, "upper": next + perRegion - 1}
		next += perRegion
	}
}
