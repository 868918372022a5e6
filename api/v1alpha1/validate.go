package v1alpha1

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Validate reports everything that is wrong with the class, each with the field
// it is about. It judges what the API server judges too, for manifests that no
// API server has seen, and what a schema cannot say.
func (in *ProxmoxNodeClass) Validate() error {
	var errs []error
	report := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("spec.%s: %s", field, fmt.Sprintf(format, args...)))
	}
	spec := &in.Spec
	validateTemplate(&spec.Template, report)
	validateHosts(spec, report)
	validateDisk(spec, report)
	validateDataDisks(spec.DataDisks, report)
	validatePlacement(spec.Placement, report)
	validateSize(spec, report)
	validateNetworks(spec.Networks, report)
	validateDevices(spec.PCIDevices, report)
	validateNames("tags", spec.Tags, tags(), report)
	validateNames("securityGroups", spec.SecurityGroups, names{
		`^[A-Za-z][A-Za-z0-9_-]{1,17}$`, "2 to 18 of A-Z, a-z, 0-9, _ and -, the first a letter, as Proxmox does", 10,
	}, report)
	validateMetadata(&spec.Metadata, report)
	validateKubelet(spec.Kubelet, report)
	if ttl := spec.TokenTTL; ttl != nil && (ttl.Duration < 5*time.Minute || ttl.Duration > 24*time.Hour) {
		report("tokenTTL", "%s is not from 5m to 24h", ttl.Duration)
	}
	if spec.Pool != "" && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$`).MatchString(spec.Pool) {
		report("pool", "%q is not a name of a Proxmox resource pool: want A-Z, a-z, 0-9, _, ., - and /, the first a letter or digit", spec.Pool)
	}
	if spec.CPUType != "" && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`).MatchString(spec.CPUType) {
		report("cpuType", "%q is not a CPU model: write one such as host or x86-64-v2-AES", spec.CPUType)
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%s %q: %w", KindProxmoxNodeClass, in.Name, errors.Join(errs...))
}

type reporter func(field, format string, args ...any)

const storagePattern = `^[A-Za-z][A-Za-z0-9_.-]{0,63}$`

// names says what each text of a list must be, and how many there may be.
type names struct {
	pattern, want string
	most          int
}

func tags() names {
	return names{`^[a-z0-9_][a-z0-9_.+-]{0,63}$`, "1 to 64 of a-z, 0-9, _, ., + and -, the first a letter, a digit or _, as Proxmox keeps tags", 10}
}

func validateTemplate(ref *TemplateReference, report reporter) {
	if ref.Name == "" && len(ref.Tags) == 0 && ref.VMID == 0 {
		report("template", "is empty: write the name, the tags or the vmid of the VM template that nodes are cloned from")
	}
	if len(ref.Name) > 128 {
		report("template.name", "has %d characters: 128 are allowed", len(ref.Name))
	}
	if ref.VMID != 0 && (ref.VMID < 100 || ref.VMID > 999999999) {
		report("template.vmid", "%d is not a VMID: write 100 to 999999999", ref.VMID)
	}
	validateNames("template.tags", ref.Tags, tags(), report)
}

func validateSize(spec *ProxmoxNodeClassSpec, report reporter) {
	validateSizing(spec, report)
	if kept := spec.MemoryOverheadMiB; kept != nil && (*kept < 0 || *kept > 1<<20) {
		report("memoryOverheadMiB", "%d is not from 0 to %d", *kept, 1<<20)
	}
}

func validateMetadata(m *Metadata, report reporter) {
	if !slices.Contains([]MetadataType{"", MetadataNone, MetadataCDROM, MetadataAgent}, m.Type) {
		report("metadata.type", "%q is not a type of metadata: write none, cdrom or agent", m.Type)
		return
	}
	seeded := m.Type == MetadataCDROM
	rendered := seeded || m.Type == MetadataAgent
	for _, field := range []struct {
		name     string
		set, use bool
		types    string
	}{
		{"storage", m.Storage != "", seeded, "cdrom"},
		{"templatesRef", m.TemplatesRef != nil, rendered, "cdrom or agent"},
		{"valuesRef", m.ValuesRef != nil, rendered, "cdrom or agent"},
		{"token", m.Token != "", rendered, "cdrom or agent"},
	} {
		if field.set && !field.use {
			report("metadata."+field.name, "means nothing without a seed: remove it, or write type: %s", field.types)
		}
	}
	if m.Type == MetadataAgent && m.TemplatesRef == nil {
		report("metadata.templatesRef", "type agent needs it: a Secret whose key join-command is the script that the guest agent runs")
	}
	if !slices.Contains([]TokenForm{"", TokenServiceAccount, TokenBootstrap}, m.Token) {
		report("metadata.token", "%q is not a form of tokens: write ServiceAccount or Bootstrap", m.Token)
	}
	if m.Storage != "" && !regexp.MustCompile(storagePattern).MatchString(m.Storage) {
		report("metadata.storage", "%q is not a storage's name: pvesm status lists them", m.Storage)
	}
	validateSecret("metadata.templatesRef", m.TemplatesRef, report)
	validateSecret("metadata.valuesRef", m.ValuesRef, report)
}

func validateSecret(field string, ref *SecretReference, report reporter) {
	if ref == nil {
		return
	}
	if len(ref.Name) > 253 || !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`).MatchString(ref.Name) {
		report(field+".name", "%q is not a Secret's name", ref.Name)
	}
	if ref.Namespace != "" && !regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`).MatchString(ref.Namespace) {
		report(field+".namespace", "%q is not a namespace", ref.Namespace)
	}
}

func validateHosts(spec *ProxmoxNodeClassSpec, report reporter) {
	name := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)
	if spec.Region != "" && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`).MatchString(spec.Region) {
		report("region", "%q is not a region's name: want the region of a cluster in numaform.yaml", spec.Region)
	}
	seen := map[string]bool{}
	for i, host := range spec.Hosts {
		field := fmt.Sprintf("hosts[%d]", i)
		region, bare := splitHost(host, spec.Region)
		switch {
		case !name.MatchString(bare) || region == "" && bare != host:
			report(field, "%q is not a host: write its name, or region/name", host)
		case spec.Region != "" && region != spec.Region:
			report(field, "%q is not in region %q: remove the host or spec.region", host, spec.Region)
		case seen[host]:
			report(field, "%q is listed twice", host)
		}
		seen[host] = true
	}
}

// splitHost returns the region and the name of a host; without a region of its
// own it has the one given.
func splitHost(host, otherwise string) (region, name string) {
	if region, name, ok := strings.Cut(host, "/"); ok {
		return region, name
	}
	return otherwise, host
}

func validateDisk(spec *ProxmoxNodeClassSpec, report reporter) {
	if spec.Clone != "" && spec.Clone != CloneLinked && spec.Clone != CloneFull {
		report("clone", "%q is not a way to clone: write linked or full", spec.Clone)
	}
	if spec.BootDevice == nil {
		return
	}
	if _, err := spec.BootDevice.SizeGiB(); err != nil {
		report("bootDevice.size", "%v", err)
	}
	if name := spec.BootDevice.Storage; name != "" && !regexp.MustCompile(storagePattern).MatchString(name) {
		report("bootDevice.storage", "%q is not a storage's name: pvesm status lists them", name)
	}
	if spec.Clone == CloneLinked && spec.BootDevice.Storage != "" {
		report("bootDevice.storage", "a linked clone stays on its template's storage: remove this, or write clone: full")
	}
}

// SizeGiB returns the size in GiB, or 0 if none is asked for.
func (b *BootDevice) SizeGiB() (int64, error) {
	if b == nil || b.Size == "" {
		return 0, nil
	}
	return sizeGiB(b.Size)
}

func sizeGiB(text string) (int64, error) {
	digits := strings.TrimRight(text, "GTi")
	size, err := strconv.ParseInt(digits, 10, 32)
	factor, known := map[string]int64{"G": 1, "Gi": 1, "T": 1024, "Ti": 1024}[strings.TrimPrefix(text, digits)]
	if err != nil || !known || size < 1 || digits[0] == '0' || len(digits) > 8 {
		return 0, fmt.Errorf("%q is not a disk size: write one such as 40G or 1T", text)
	}
	return size * factor, nil
}

func validatePlacement(p Placement, report reporter) {
	policies := []PlacementPolicy{"", PlacementShared, PlacementNUMA, PlacementDedicated, PlacementIsolated}
	if !slices.Contains(policies, p.Policy) {
		report("placement.policy", "%q is not a policy: write Shared, NUMA, Dedicated or Isolated", p.Policy)
		return
	}
	validatePins(p, report)
	validateHugePages(p, report)
	validateCores(p, report)
	validateEmulator(p, report)
	if _, err := p.OvercommitRatio(); err != nil {
		report("placement.overcommit", "%v", err)
	} else if p.Overcommit != "" && p.EffectivePolicy() != PlacementShared {
		report("placement.overcommit", "means nothing to policy %s: remove it, or choose Shared", p.Policy)
	}
}

// validateHugePages checks what a class asks for to back the memory of its VMs.
func validateHugePages(p Placement, report reporter) {
	switch {
	case p.HugePages != "" && p.HugePages != HugePages2Mi && p.HugePages != HugePages1Gi:
		report("placement.hugePages", "%q is no size of huge pages: write 2Mi or 1Gi", p.HugePages)
	case p.HugePages != "" && p.EffectivePolicy() == PlacementShared:
		report("placement.hugePages", "means nothing to policy Shared, whose memory is bound to no NUMA node: "+
			"remove it, or choose NUMA, Dedicated or Isolated")
	}
}

// validateCores checks what a class asks for beside its policy and pins.
func validateCores(p Placement, report reporter) {
	switch {
	case p.WholeCores != "" && p.WholeCores != WholeCoresPrefer && p.WholeCores != WholeCoresRequire:
		report("placement.wholeCores", "%q is not known: write Require, or Prefer", p.WholeCores)
	case p.WholeCores != "" && p.EffectivePolicy() != PlacementDedicated:
		report("placement.wholeCores", "means nothing to policy %s: remove it, or choose Dedicated", p.EffectivePolicy())
	}
	if p.Spread != "" && p.Spread != SpreadNone && p.Spread != SpreadHosts {
		report("placement.spread", "%q is not a way to spread: write Hosts, or None", p.Spread)
	}
}

func validatePins(p Placement, report reporter) {
	pinned := p.Policy == PlacementDedicated || p.Policy == PlacementIsolated
	switch {
	case p.PinWith != "" && p.PinWith != PinWithAffinity && p.PinWith != PinWithHostAgent:
		report("placement.pinWith", "%q is not a way to pin: write Affinity or HostAgent", p.PinWith)
	case pinned && p.PinWith == "":
		report("placement.pinWith", "is needed by policy %s: write HostAgent if numaform-agent runs on the hosts, "+
			"or Affinity if numaform logs in as root@pam", p.Policy)
	case !pinned && p.PinWith != "":
		report("placement.pinWith", "means nothing to policy %s: remove it, or choose Dedicated or Isolated", p.EffectivePolicy())
	}
}

func validateEmulator(p Placement, report reporter) {
	switch {
	case p.Emulator != "" && p.Emulator != EmulatorGuest && p.Emulator != EmulatorShared:
		report("placement.emulator", "%q is no place of the emulator: write guest or shared", p.Emulator)
	case p.Emulator != "" && p.PinWith != PinWithHostAgent:
		report("placement.emulator", "is numaform-agent's to obey: remove it, or choose pinWith HostAgent")
	}
}

// EffectivePolicy returns the policy, which is Shared unless another is written.
func (p Placement) EffectivePolicy() PlacementPolicy {
	if p.Policy == "" {
		return PlacementShared
	}
	return p.Policy
}

// OvercommitRatio returns how many vCPUs may stand on one host CPU, 1 by default.
func (p Placement) OvercommitRatio() (float64, error) {
	if p.Overcommit == "" {
		return 1, nil
	}
	ratio, err := strconv.ParseFloat(p.Overcommit, 64)
	if err != nil || !(ratio >= 1 && ratio <= 16) || !regexp.MustCompile(`^[1-9][0-9]?(\.[0-9]{1,2})?$`).MatchString(p.Overcommit) {
		return 0, fmt.Errorf("%q is not a ratio from 1 to 16, such as 1.5", p.Overcommit)
	}
	return ratio, nil
}

func validateNetworks(networks []Network, report reporter) {
	if len(networks) > 6 {
		report("networks", "has %d devices: 6 are allowed", len(networks))
	}
	bridge := regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_.-]{0,14}$`)
	prefix := regexp.MustCompile(`^[0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){2}$`)
	models := []string{"", "virtio", "e1000", "e1000e", "rtl8139", "vmxnet3"}
	for i, n := range networks {
		field := fmt.Sprintf("networks[%d].", i)
		if !bridge.MatchString(n.Bridge) {
			report(field+"bridge", "%q is not a bridge's name, such as vmbr0", n.Bridge)
		}
		if !slices.Contains(models, n.Model) {
			report(field+"model", "%q is not a model: write one of %s", n.Model, strings.Join(models[1:], ", "))
		}
		if n.MACPrefix != "" && !prefix.MatchString(n.MACPrefix) {
			report(field+"macPrefix", "%q is not the first half of a MAC address of one device: write three octets such as BC:24:11, the first even", n.MACPrefix)
		}
		if n.VLAN < 0 || n.VLAN > 4094 {
			report(field+"vlan", "%d is not a VLAN tag: write 1 to 4094", n.VLAN)
		}
		if n.MTU < 0 || n.MTU > 65520 {
			report(field+"mtu", "%d is not an MTU: write 576 to 65520, or 1 for the bridge's", n.MTU)
		}
	}
}

func validateNames(field string, list []string, wanted names, report reporter) {
	if len(list) > wanted.most {
		report(field, "has %d entries: %d are allowed", len(list), wanted.most)
	}
	re := regexp.MustCompile(wanted.pattern)
	for i, name := range list {
		if !re.MatchString(name) {
			report(fmt.Sprintf("%s[%d]", field, i), "%q: want %s", name, wanted.want)
		}
		if slices.Index(list, name) < i {
			report(fmt.Sprintf("%s[%d]", field, i), "%q is listed twice", name)
		}
	}
}
