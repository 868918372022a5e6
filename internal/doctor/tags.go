package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/internal/proxmox"
)

// tags compares the tags that VMs get, and the template tags that their clones lose, with
// the tags that the datacenter allows for users without Sys.Modify on /.
func (e *examination) tags(ctx context.Context, r *Region, u *use) {
	where := string(r.Name)
	have, err := r.Client.Permissions(ctx, []string{"/"})
	if err != nil {
		e.failed("tags", where, err)
		return
	}
	access, err := r.Client.TagAccess(ctx)
	if err != nil {
		e.failed("tags", where, err)
		return
	}
	refused := slices.DeleteFunc(slices.Sorted(maps.Keys(u.tags)), access.Allows)
	if have["/"].Has("Sys.Modify", false) || len(refused) == 0 {
		e.ok("tags", where, "VMs may have the tags of their classes")
		return
	}
	e.add(Finding{
		Check: "tags", Status: Fail, Where: where, Mend: mendTags(access, refused),
		What: fmt.Sprintf("numaform's user may not set or take off: %s. Without, VMs are cloned and then refused their configuration", strings.Join(refused, ", ")),
	})
}

// mendTags returns the commands that allow the tags.
func mendTags(access proxmox.TagAccess, refused []string) string {
	var commands []string
	is := func(tag string) bool { return slices.Contains(refused, tag) }
	if rest := slices.DeleteFunc(slices.Clone(access.Registered), is); len(rest) < len(access.Registered) {
		option := fmt.Sprintf("--registered-tags '%s'", strings.Join(rest, ";"))
		if len(rest) == 0 {
			option = "--delete registered-tags"
		}
		commands = append(commands, "pvesh set /cluster/options "+option)
	}
	if !access.Free() {
		mode := access.Mode
		if mode == "none" {
			mode = "list"
		}
		list := append(slices.DeleteFunc(slices.Clone(access.List), is), refused...)
		commands = append(commands, fmt.Sprintf("pvesh set /cluster/options --user-tag-access 'user-allow=%s,user-allow-list=%s'", mode, strings.Join(list, ";")))
	}
	return strings.Join(commands, " && ")
}
