package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

// templates lists the templates of the hosts if there are no classes that name some.
func (e *examination) templates(r *Region, snapshot *topology.Snapshot) {
	usable := false
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if host.Problem != "" {
			continue
		}
		if len(host.Templates) == 0 {
			e.add(Finding{
				Check: "template", Status: Warn, Where: host.ID().String(), What: "has no template, so no node can be cloned there",
				Mend: "make one with the name that the others have: docs/join.md",
			})
		}
		for _, template := range host.Templates {
			finding := Finding{Check: "template", Status: OK, Where: host.ID().String()}
			finding.What = fmt.Sprintf("%s (VMID %d, %d GiB on %s)", template.Name, template.VMID, template.DiskGiB, template.Storage)
			if template.Problem != "" {
				finding.Status, finding.What = Warn, fmt.Sprintf("%s (VMID %d) cannot be used: %s", template.Name, template.VMID, template.Problem)
			}
			usable = usable || template.Problem == ""
			e.add(finding)
		}
	}
	if !usable {
		e.add(Finding{
			Check: "template", Status: Fail, Where: string(r.Name), What: "no host has a template that nodes can be cloned from",
			Mend: "make one, or mend those above: docs/join.md",
		})
	}
}

// storages lists what the hosts' storages accept.
func (e *examination) storages(snapshot *topology.Snapshot) {
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if host.Problem != "" {
			continue
		}
		finding := Finding{Check: "storage", Status: OK, Where: host.ID().String()}
		images, iso := taking(host, "images"), taking(host, "iso")
		finding.What = fmt.Sprintf("disks on %s; seeds on %s", orNone(images), orNone(iso))
		switch {
		case len(images) == 0:
			finding.Status = Fail
			finding.Mend = "allow the content Disk image on a storage: pvesm set STORAGE --content images; if there is one, grant Datastore.Audit on it"
		case len(iso) == 0:
			finding.Status = Warn
			finding.Mend = "for nodes that join by seeds, allow the content ISO image on a storage: pvesm set STORAGE --content iso; if there is one, grant Datastore.Audit on it"
		}
		e.add(finding)
	}
}

// taking returns the active storages of a host that accept a content type.
func taking(host *topology.Host, content string) []string {
	var list []string
	for _, storage := range host.Storages {
		if storage.Active && slices.Contains(storage.Content, content) {
			list = append(list, storage.Name)
		}
	}
	return list
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
