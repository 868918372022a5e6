package convert

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The API group and kinds of karpenter-provider-proxmox.
const (
	kppGroup      = "karpenter.proxmox.sinextra.dev"
	kindTemplate  = "ProxmoxTemplate" // also ours
	kindUnmanaged = "ProxmoxUnmanagedTemplate"
)

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
	case kindScheduler:
		// The daemon does all this by default.
		agent := c.object(oursAgent, "")
		agent["clusters"] = []any{c.ClusterID}
		agent["governor"] = map[string]any{"pinned": "performance", "unpinned": "powersave"}
		agent["irqs"] = "guest"
		c.line(o, "", Changed, oursAgent, "copy the file to /etc on each host; it has the defaults of proxmox-scheduler. Remove the governors if the hosts do not support them")
	}
	c.walk(o)
	switch o.Kind {
	case kindTemplate:
		c.kppTemplate(o)
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

func kppStateMetrics(c *conversion, at *place) {
	at.put(c, text(at.value) != "true")
}

// kppDaemonFlags converts arguments of the daemon on the hosts.
func kppDaemonFlags(c *conversion, at *place) {
	var args []any
	for _, arg := range strings.Fields(text(at.value)) {
		args = append(args, arg)
	}
	flags := flagsOf([]map[string]any{{"args": args}})
	for name, key := range map[string]string{"cpu-governor-busy": "pinned", "cpu-governor-free": "unpinned"} {
		if governor, ok := flags[name]; ok {
			put(c.object(oursAgent, ""), "governor."+key, nil, governor)
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
	spec, name := c.spec(at.from.Name), text(fields["name"])
	at.verdict, at.reason = Kept, ""
	// The class gets network cards of its own, with the group, instead of the template's.
	ref, _ := at.from.at("spec", "instanceTemplateRef").(map[string]any)
	if template := c.out[fragment+"/"+text(ref["kind"])+"/"+text(ref["name"])]; template != nil && spec["networks"] == nil {
		var cards []any
		for _, card := range mappings(get(template.fields, "spec", "networks")) {
			cards = append(cards, maps.Clone(card))
		}
		if cards != nil {
			spec["networks"] = cards
		}
	}
	cards := mappings(spec["networks"])
	number := strings.TrimPrefix(cmp.Or(text(fields["interface"]), "net0"), "net")
	switch n, err := strconv.Atoi(number); {
	case err == nil && n < len(cards) && cards[n]["firewall"] != true:
		at.drop("it has no effect, because its interface is without firewall: true")
	case err == nil && n < len(cards):
		addTo(cards[n], "securityGroups", name)
		at.ours = "ProxmoxNodeClass spec.networks[].securityGroups"
	case number == "0":
		addTo(spec, "securityGroups", name)
		at.ours = "ProxmoxNodeClass spec.securityGroups"
	default:
		at.drop("its template does not describe the interface: add networks with this group to the class")
	}
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
