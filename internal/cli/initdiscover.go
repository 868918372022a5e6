package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

// discovery contains the facts about an existing Proxmox from which init proposes values.
// A nil discovery proposes and refuses nothing.
type discovery struct {
	hosts, templates, pools []string
	// disks and isos are the storages for disks and for seeds.
	disks, isos []string
}

// discover reads Proxmox with the token in discoverFile, prints what it found, and proposes a
// template if its flag is not set.
func (o *initOptions) discover(ctx context.Context, process Process, flags *pflag.FlagSet) error {
	text, err := os.ReadFile(o.discoverFile)
	if err != nil {
		return fmt.Errorf("--discover-token-file: %w: write user@realm!name=secret of an existing API token to this file", err)
	}
	id, secret, found := strings.Cut(strings.TrimSpace(string(text)), "=")
	if !found {
		return usageError{fmt.Errorf("--discover-token-file %s: must contain user@realm!name=secret on one line", o.discoverFile)}
	}
	o.url = apiURL(o.url)
	config := proxmox.Config{Region: "init", URL: o.url, Insecure: o.insecure, TokenID: id, TokenSecret: secret}
	if o.caFile != "" && !o.insecure {
		config.CA, err = os.ReadFile(o.caFile)
		if err != nil && (!errors.Is(err, os.ErrNotExist) || flags.Lookup("ca-file").Changed) {
			return fmt.Errorf("--ca-file: %w: copy it with %s", err, proxmox.CopyCA(o.url, o.caFile))
		}
	}
	client, err := proxmox.New(config)
	if err != nil {
		return err
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("reading Proxmox with the token in %s: %w", o.discoverFile, err)
	}
	o.found = discovered(snapshot)
	fmt.Fprintf(process.Stderr, "Found hosts %s; templates %s; storages for disks %s, for seeds %s; pools %s.\n",
		named(o.found.hosts), named(o.found.templates), named(o.found.disks), named(o.found.isos), named(o.found.pools))
	if len(o.found.templates) == 0 {
		fmt.Fprintln(process.Stderr, "No host has a template: create one with examples/template/make-template.sh before the first apply.")
	}
	return o.propose(flags)
}

// discovered returns the names in a snapshot. Templates and storages that more hosts have
// come first.
func discovered(snapshot *topology.Snapshot) *discovery {
	d := &discovery{}
	hosts, disks, isos := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		d.hosts = append(d.hosts, string(host.Name))
		here := map[string]bool{}
		for j := range host.Templates {
			here[host.Templates[j].Name] = host.Templates[j].Name != ""
		}
		for name, ok := range here {
			if ok {
				hosts[name]++
			}
		}
		for j := range host.Storages {
			storage := &host.Storages[j]
			if slices.Contains(storage.Content, "images") {
				disks[storage.Name]++
			}
			if slices.Contains(storage.Content, "iso") {
				isos[storage.Name]++
			}
		}
	}
	for i := range snapshot.Regions {
		d.pools = append(d.pools, snapshot.Regions[i].Pools...)
	}
	d.templates, d.disks, d.isos = mostFrequent(hosts), mostFrequent(disks), mostFrequent(isos)
	return d
}

// mostFrequent returns the names, the one with the largest count first.
func mostFrequent(counts map[string]int) []string {
	names := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(names, func(a, b string) int { return counts[b] - counts[a] })
	return names
}

// named lists names, or says that there are none.
func named(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// propose makes the template that most hosts have the default, unless the flag is set or a
// template with the default name exists.
func (o *initOptions) propose(flags *pflag.FlagSet) error {
	if flag := flags.Lookup("template"); !flag.Changed && len(o.found.templates) > 0 && !slices.Contains(o.found.templates, o.template) {
		o.template = o.found.templates[0]
	}
	return o.check()
}

// choices lists the names in Proxmox that can answer the question for a flag.
func (d *discovery) choices(flag string) string {
	if d == nil {
		return ""
	}
	return strings.Join(map[string][]string{
		"template": d.templates, "pool": d.pools, "seed-storage": d.isos, "disk-storage": d.disks,
	}[flag], ", ")
}

// hasPool reports whether the resource pool exists.
func (d *discovery) hasPool(name string) bool {
	return d != nil && name != "" && slices.Contains(d.pools, name)
}

// check refuses names that do not exist, except the name of a pool, and the name of a
// template if no host has a template.
func (d *discovery) check(o *initOptions) error {
	if d == nil {
		return nil
	}
	if len(d.templates) > 0 && !slices.Contains(d.templates, o.template) {
		return fmt.Errorf("--template %q: no host has this template; available: %s", o.template, named(d.templates))
	}
	for _, given := range []struct {
		flag, content string
		names, exist  []string
	}{
		{"seed-storage", "ISO images", o.seeds, d.isos},
		{"disk-storage", "disk images", o.disks, d.disks},
	} {
		for _, name := range given.names {
			if !slices.Contains(given.exist, name) {
				return fmt.Errorf("--%s %q: no host has a storage with this name for %s; available: %s", given.flag, name, given.content, named(given.exist))
			}
		}
	}
	return nil
}
