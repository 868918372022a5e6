package conformance

import (
	"cmp"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// own is the prefix of the names of the objects that a run creates.
const own = "numaform-kit"

// within returns an error for a request that could change an object outside the bounds of
// the run. It relies neither on the case nor on the responses from Proxmox.
func (r *run) within(s *Step) error {
	if r.mayChange(s) {
		return nil
	}
	return fmt.Errorf("%s %v could change an object outside pool %s and VMIDs %d-%d: not sent", s.Request, s.Params, r.cfg.Pool, r.cfg.Lower, r.cfg.Upper)
}

func (r *run) mayChange(s *Step) bool {
	method, where, _ := strings.Cut(s.Request, " ")
	if method == http.MethodGet {
		return true
	}
	parts := strings.Split(strings.TrimPrefix(path.Clean(where), "/"), "/")
	if pool := s.Params["pool"]; pool != "" && !r.ownPool(pool) && pool != r.cfg.Pool {
		return false
	}
	if len(parts) < 2 {
		parts = append(parts, "")
	}
	switch parts[0] + "/" + parts[1] {
	case "version/", "access/ticket": // no method of Proxmox changes the version
		return true
	case "access/users":
		return strings.HasPrefix(strings.Join(parts[2:], "/")+s.Params["userid"], own)
	case "access/roles":
		return strings.HasPrefix(strings.Join(parts[2:], "/")+s.Params["roleid"], own)
	case "access/acl":
		return strings.HasPrefix(s.Params["users"], own) && strings.HasPrefix(s.Params["roles"], own) && s.Params["tokens"] == "" && s.Params["groups"] == ""
	}
	switch {
	case parts[0] == "pools":
		return r.mayChangePool(method, parts[1:], s)
	case parts[0] == "nodes" && len(parts) > 2:
		return r.mayChangeNode(method, parts[2], parts[3:], s)
	}
	return false
}

// mayChangePool checks a request to /pools/parts.
func (r *run) mayChangePool(method string, parts []string, s *Step) bool {
	for _, list := range []string{s.Params["vms"], s.Params["storage"]} {
		for _, member := range strings.FieldsFunc(list, func(c rune) bool { return c == ',' }) {
			if vmid, err := strconv.Atoi(member); err != nil || !r.inRange(vmid) {
				return false
			}
		}
	}

	// The pool is in the path or, if that has none, in the parameters.
	name := cmp.Or(strings.Join(parts, "/"), s.Params["poolid"])
	// Proxmox refuses these names, and does not create an existing pool again.
	refused := name == "" || strings.ContainsAny(name, " !") || strings.Count(name, "/") > 2
	return refused || r.ownPool(name) || method == http.MethodPost && name == r.cfg.Pool
}

// ownPool reports whether a pool has a name that a run gives to its pools, or the name of
// the pool that must not exist.
func (r *run) ownPool(name string) bool {
	return strings.HasPrefix(name, r.cfg.Pool+"/"+own) || name == r.values["missing-pool"]
}

// mayChangeNode checks a request to /nodes/HOST/what/parts.
func (r *run) mayChangeNode(method, what string, parts []string, s *Step) bool {
	switch what {
	case "qemu":
		if len(parts) == 0 {
			return r.ownVMID(s.Params["vmid"])
		}
		if len(parts) == 2 && parts[1] == "clone" {
			return r.ownVMID(s.Params["newid"]) && (parts[0] == strconv.Itoa(r.cfg.Template) || r.ownVMID(parts[0]))
		}
		return r.ownVMID(parts[0])
	case "storage":
		return len(parts) > 1 && r.mayChangeStorage(method, parts[1:], s)
	case "tasks": // the missing task, or the run's last one, which has ended
		return len(parts) > 0 && (parts[0] == r.values["missing-upid"] || parts[0] == r.values["upid"])
	case "nothing":
		return true
	case "config": // only with the privileges of a case, and without parameters
		return s.Privileges != nil && len(s.Params) == 0
	}
	return false
}

// mayChangeStorage checks a request to /nodes/HOST/storage/STORAGE/parts.
func (r *run) mayChangeStorage(method string, parts []string, s *Step) bool {
	if parts[0] != "content" {
		name := s.Params["filename"]
		if s.File != nil {
			name = s.File.Name
		}
		return name == "" || strings.HasPrefix(name, own)
	}

	volume := strings.Join(parts[1:], "/")
	if strings.Contains(volume, own) {
		return true
	}
	for vmid := r.cfg.Lower; vmid <= r.cfg.Upper; vmid++ {
		if strings.Contains(volume, fmt.Sprintf("vm-%d-", vmid)) {
			return method == http.MethodDelete
		}
	}
	return false
}

// ownVMID reports whether a text is a VMID in the range, or is not a VMID.
func (r *run) ownVMID(text string) bool {
	const least, most = 100, 999999999
	vmid, err := strconv.Atoi(text)
	return err != nil || vmid < least || vmid > most || r.inRange(vmid)
}
