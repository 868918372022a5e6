package convert

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/bootstrap"
	"github.com/numaform/numaform/topology"
)

// kppClasses completes the classes with the fields of their templates, and converts their
// Secrets.
func (c *conversion) kppClasses(objects []Object, secrets map[string]*Object) {
	for i := range objects {
		o := &objects[i]
		if o.Kind != oursClass || o.Group != kppGroup {
			continue
		}
		spec := c.spec(o.Name)
		ref, _ := o.at("spec", "instanceTemplateRef").(map[string]any)
		kind, name := text(ref["kind"]), text(ref["name"])
		source := c.out[fragment+"/"+kind+"/"+name]
		if source == nil {
			c.line(o, "spec.instanceTemplateRef", Dropped, "", fmt.Sprintf("%s %s is not in the input: set spec.template", kind, name))
			source = &output{}
		}
		for key, value := range child(source.fields, "spec") {
			if _, set := spec[key]; !set {
				spec[key] = value
			}
		}
		if kind == kindTemplate {
			c.kppTemplateOf(o, spec, name)
		}
		if o.at("spec", "placementStrategy", "zoneBalance") == nil {
			put(spec, "placement.hostSelection", nil, "Balanced") // the default
		}
		if spec["template"] == nil && c.Template != "" {
			spec["template"] = map[string]any{"name": c.Template}
		}
		if spec["cpuType"] == nil {
			c.line(o, "", Changed, oursClass+" spec.cpuType", "karpenter-provider-proxmox keeps the CPU type of the template; numaform sets it, by default to host: set cpuType if the template has another type")
		}
		c.kppStatic(o, spec)
		c.kppMetadata(o, spec, secrets)
	}
	maps.DeleteFunc(c.out, func(_ string, o *output) bool { return o.kind == fragment })
	c.kppUnused()
	for _, pool := range c.all(oursPool) {
		if get(pool, "spec", "template", "spec", "requirements") == nil {
			put(pool, "spec.template.spec.requirements", nil, []any{}) // the CRD requires it
		}
	}
}

// kppMetadata converts the Secrets of a class with cloud-init data.
func (c *conversion) kppMetadata(o *Object, spec map[string]any, secrets map[string]*Object) {
	metadata := child(spec, "metadata")
	if text(metadata["type"]) != "cdrom" {
		return
	}
	ref := func(field string) *Object {
		fields, _ := o.at("spec", "metadataOptions", field).(map[string]any)
		if text(fields["name"]) == "" {
			return nil
		}
		secret := secrets[text(fields["namespace"])+"/"+text(fields["name"])]
		if secret == nil {
			c.line(o, "spec.metadataOptions."+field, Dropped, "", fmt.Sprintf("Secret %s/%s is not in the input: create it in namespace %s", text(fields["namespace"]), text(fields["name"]), c.Namespace))
		}
		return secret
	}
	secret, own := ref("templatesRef"), ref("valuesRef")
	values := map[string]any{}
	if own == nil && o.at("spec", "metadataOptions", "valuesRef", "name") != nil {
		values = nil // it is not in the input
	}
	if own != nil {
		name := own.Name
		if own == secret {
			name += "-values" // the Secret with the templates may contain nothing else
		}
		metadata["valuesRef"] = map[string]any{"name": name}
		values = c.kppValues(own, name)
	}
	if secret == nil {
		return
	}
	metadata["templatesRef"] = map[string]any{"name": secret.Name}
	templates := c.kppDocuments(secret, own, values, spec["networks"] != nil)
	if len(bootstrap.UsesBootstrapToken(templates)) > 0 {
		metadata["token"] = "Bootstrap"
		put(c.object(oursChart, ""), "rbac.bootstrapTokens", nil, true)
		c.line(o, "spec.metadataOptions", Changed, oursClass+" spec.metadata.token", "the templates use a bootstrap token, which needs the value rbac.bootstrapTokens of the chart")
	}
	if err := rendered(templates, values); err != nil {
		c.line(secret, "", Dropped, "", err.Error()+": correct the template")
	}
}

// kppValues copies a Secret with values, and returns its values.
func (c *conversion) kppValues(secret *Object, name string) map[string]any {
	stored := map[string]any{}
	c.object(oursSecret, name)["stringData"] = stored
	data := secret.data()
	for _, key := range sorted(data) {
		stored[key] = data[key]
		if !c.reported(secret, key) {
			c.line(secret, key, Kept, "Secret stringData."+key, "")
		}
	}
	return maps.Clone(stored)
}

// reported reports whether the result has a line about an option, as if several classes use
// the same Secret.
func (c *conversion) reported(o *Object, path string) bool {
	return slices.ContainsFunc(c.lines, func(l Line) bool { return l.Object == o.String() && l.Path == path })
}

// kppDocuments copies a Secret with templates, and returns the templates that apply. values is
// the Secret with values, which may be the same, and given its values, if they are known.
func (c *conversion) kppDocuments(secret, values *Object, given map[string]any, networks bool) bootstrap.Templates {
	stored := map[string]any{}
	c.object(oursSecret, secret.Name)["stringData"] = stored
	templates := bootstrap.Defaults()
	data := secret.data()
	documents := []string{bootstrap.UserData, bootstrap.MetaData, bootstrap.NetworkConfig, bootstrap.VendorData}
	for _, name := range documents {
		theirs := data[name]
		if theirs == "" {
			if name != bootstrap.VendorData && !c.reported(secret, name) {
				c.line(secret, name, Changed, "", "the key is missing, so numaform's own template applies instead of karpenter-provider-proxmox's: see docs/join.md")
			}
			continue
		}
		ours, notes := rewrite(name, theirs, given)
		templates[name] = ours
		stored[name] = ours
		if name == bootstrap.NetworkConfig && strings.Contains(theirs, "Interfaces") && !networks {
			notes = append(notes, "its interfaces are empty, because the class has no networks, and numaform does not know those of the template: set networks in the class, or remove the key for DHCP on all interfaces")
		}
		if strings.Contains(theirs, ".NodeAddress") || strings.Contains(theirs, ".NodeGateway") {
			notes = append(notes, notedNoAddress)
		}
		verdict := Kept
		if len(notes) > 0 {
			verdict = Changed
		}
		if !c.reported(secret, name) {
			c.line(secret, name, verdict, "Secret stringData."+name, strings.Join(notes, "; "))
		}
	}
	for _, key := range sorted(data) {
		if !slices.Contains(documents, key) && secret != values && !c.reported(secret, key) {
			c.line(secret, key, Dropped, "", "it is no document of cloud-init, so karpenter-provider-proxmox does not read it either")
		}
	}
	return templates
}

// rendered checks that templates render with the values of some VM.
func rendered(templates bootstrap.Templates, values map[string]any) error {
	sample := bootstrap.ValuesOf(&fleet.VM{
		Key: "00000000000000000000000000000001", VMID: 2000, Name: "workers-2000",
		Spec:      fleet.Spec{InstanceType: "c1.2VCPU-4GB", NodeClass: "default", VCPUs: 2, MemoryMiB: 4096, DiskGiB: 30},
		Placement: fleet.Placement{Host: topology.HostID{Region: "region", Host: "pve-1"}},
	})
	sample.Kubernetes.Version = "v1.34.0"
	sample.Kubernetes.RootCA = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"
	sample.Kubernetes.APIServer = "https://10.0.0.1:6443"
	sample.Kubernetes.Token = "abcdef.0123456789abcdef"
	sample.Kubernetes.BootstrapToken = sample.Kubernetes.Token
	sample.Values = maps.Clone(values)
	if err := sample.Configure(bootstrap.Kubelet{}); err != nil {
		return err
	}
	_, err := bootstrap.Render(templates, sample)
	return err
}

// rawFile adds a JSON file.
func (c *conversion) rawFile(name string, content any) {
	encoded, err := json.MarshalIndent(content, "", "  ")
	if err == nil {
		c.out[name+"/"] = &output{kind: name, fields: map[string]any{}, raw: string(encoded) + "\n"}
	}
}

// finishConfig sets the keys of numaform.yaml that no peer has, and makes each region's range
// of VMIDs disjoint.
func (c *conversion) finishConfig() {
	config := c.object(oursConfig, "")
	config["clusterID"] = c.ClusterID
	put(config, "fleet.dir", nil, "fleet")
	put(config, "fleet.backend.type", nil, "local")
	if slices.ContainsFunc(c.clusters(), func(cluster map[string]any) bool { return cluster["vmid_range"] == nil }) {
		c.vmids(20000) // the default of karpenter-provider-proxmox
	}
	if len(c.all(kindTemplate)) > 0 {
		c.templateVMIDs()
	}
	if chart := c.out[oursChart+"/"]; chart != nil && len(chart.fields) == 0 {
		delete(c.out, oursChart+"/")
	}
}
