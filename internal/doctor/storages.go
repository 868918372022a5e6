package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/shell"
	"github.com/numaform/numaform/topology"
)

// templates lists the templates of the hosts. It is called only if there are no classes.
func (e *examination) templates(r *Region, snapshot *topology.Snapshot) {
	usable := false
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if host.Problem != "" {
			continue
		}
		where := host.ID().String()
		if len(host.Templates) == 0 && !servedByOthers(host, snapshot) {
			e.add("template", Warn, where, "has no template, so numaform cannot clone nodes on it", "create a template with the same name as on other hosts: see docs/templates.md")
		}
		for _, template := range host.Templates {
			if template.Problem != "" {
				what, values := topology.Sentence("%s (%s) is not usable: %s", template.Name, topology.VMIDValue(template.VMID), template.Problem)
				e.report = append(e.report, Finding{Check: "template", Status: Warn, Where: where, What: what, Values: values, Commands: onHost(template.Commands...)})
				continue
			}
			usable = true
			e.template(where, host.ID(), &scheduling.HostTemplate{Template: template, On: host.ID()})
		}
	}
	if !usable {
		e.add("template", Fail, string(r.Name), "no host has a usable template", "create a template, or fix one of the problems above: see docs/templates.md")
	}
}

// servedByOthers reports whether VMs on a host can be cloned from a template of another host.
func servedByOthers(host *topology.Host, snapshot *topology.Snapshot) bool {
	return slices.ContainsFunc(snapshot.Hosts, func(from topology.Host) bool {
		return from.Name != host.Name && slices.ContainsFunc(from.Templates, func(t topology.Template) bool { return host.CloneProblem(&t, &from, "") == "" })
	})
}

// template names a usable template of a host and its disk.
func (e *examination) template(where string, host topology.HostID, template *scheduling.HostTemplate) {
	what, values := topology.Sentence("%s (%s, %s on %s)", template.Name,
		topology.VMIDValue(template.VMID), topology.Amount(template.DiskGiB, "GiB"), template.Storage)
	if template.On != host {
		what += fmt.Sprintf(", cloned from %s", template.On.Host)
	}
	e.report = append(e.report, Finding{Check: "template", Status: OK, Where: where, What: what, Values: values})
}

// storages lists the storages for disks and seeds on each host. It is called only if there
// are no classes.
func (e *examination) storages(snapshot *topology.Snapshot) {
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if host.Problem != "" {
			continue
		}
		accepting := func(content string) (names []string) {
			for _, storage := range host.Storages {
				if storage.Active && slices.Contains(storage.Content, content) {
					names = append(names, storage.Name)
				}
			}
			return names
		}
		where := func(use string, names []string) string {
			if len(names) == 0 {
				return "no active storage for " + use
			}
			return use + " on " + list(names)
		}
		images, iso := accepting("images"), accepting("iso")
		status, fix := OK, ""
		switch {
		case len(images) == 0:
			status = Fail
			fix = "allow the content Disk image on a storage, in addition to its current content: pvesm set STORAGE --content CURRENT,images; if such a storage exists, grant Datastore.Audit on it"
		case len(iso) == 0:
			status = Warn
			fix = "for nodes that join with seeds, allow the content ISO image on a storage, in addition to its current content: pvesm set STORAGE --content CURRENT,iso; if such a storage exists, grant Datastore.Audit on it"
		}
		e.add("storage", status, host.ID().String(), where("disks", images)+"; "+where("seeds", iso), fix)
	}
}

// classStorages checks the storages that classes use on each host.
func (e *examination) classStorages(ctx context.Context, r *Region, snapshot *topology.Snapshot) {
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		disks, seeds := e.storagesOn(host, snapshot)
		if host.Problem != "" || len(disks)+len(seeds) == 0 {
			continue
		}
		where := host.ID().String()
		states, err := r.Client.StoragesOf(ctx, host.Name)
		if err != nil {
			e.failed("storage", where, err)
			continue
		}

		usable := true
		for _, name := range distinct(slices.Concat(disks, seeds)) {
			if what, fix, commands := unusable(name, host.Name, states); what != "" {
				e.add("storage", Warn, where, what, fix, commands...) // the check of the class fails if no host remains
				usable = false
			}
		}
		if !usable {
			continue
		}
		what := "disks on " + list(disks)
		if len(seeds) > 0 {
			what += "; seeds on " + list(seeds)
			// See pve-storage 9.1.7, PVE/API2/Storage/Status.pm:637-664
			if len(snapshot.Hosts) > 1 && slices.ContainsFunc(seeds, func(name string) bool { return !states[name].Shared }) {
				what += " (the host that receives an upload copies it there by ssh)"
			}
		}
		e.ok("storage", where, what)
	}
}

// unusable explains why a host cannot use a storage, or returns "".
func unusable(name string, host topology.HostName, states map[string]proxmox.StorageState) (what, fix string, commands []Command) {
	state, exists := states[name]
	switch {
	case !exists:
		return fmt.Sprintf("storage %q does not exist, or numaform's user has no access to it", name),
			fmt.Sprintf("run `pvesm status` on the host; if it lists the storage, grant Datastore.Audit on /storage/%s; otherwise, use another storage in the class", name), nil
	case !state.Enabled:
		commands := onHost(shell.Line("pvesm", "set", name, "--disable", "0"))
		return fmt.Sprintf("storage %q is disabled, or not available on this host", name),
			fmt.Sprintf("%s, and add %s to its nodes, or use another storage in the class", joined(commands), host), commands
	case !state.Active:
		return fmt.Sprintf("storage %q is enabled but not active", name),
			fmt.Sprintf("run `pvesm status --storage %s` on the host", name), nil
	}
	return "", "", nil
}

// storagesOn returns the storages for disks and seeds that classes use on a host, by name or
// by default.
func (e *examination) storagesOn(host *topology.Host, snapshot *topology.Snapshot) (disks, seeds []string) {
	diskSet, seedSet := set{}, set{}
	for i := range e.config.Classes {
		class := &e.config.Classes[i]
		if !scheduling.Allows(class, host.ID()) {
			continue
		}
		if class.Spec.BootDevice != nil {
			diskSet[class.Spec.BootDevice.Storage] = true
		}
		for _, disk := range class.Spec.DataDisks {
			diskSet[disk.Storage] = true
		}
		needs, _ := scheduling.NeedsOf(class, snapshot, host.ID())
		for _, name := range needs.Disks {
			diskSet[name] = true
		}
		seed := class.Spec.Metadata.Storage
		if found, ok := scaler.SeedStorage(host, needs.Seed); ok {
			seed = found
		}
		seedSet[seed] = true
	}
	return diskSet.sorted(), seedSet.sorted()
}

func distinct(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}
