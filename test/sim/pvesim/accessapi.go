package pvesim

import "strings"

// getPermissions handles GET /access/permissions: the permissions of the caller, of one of
// the caller's tokens or, with Sys.Audit on /access, of another user or token.
func getPermissions(r *request) (any, error) {
	a := r.s.access
	who := r.who
	if other := identity(r.p["userid"]); other != "" && other != who {
		if e := a.check(r.who, "/access", "Sys.Audit"); e != nil && other.user() != string(r.who) {
			return nil, e
		}
		who = other
	}
	if path := r.p["path"]; path != "" {
		path = normalizePath(path)
		return map[string]any{path: flags(a.permissions(who, path))}, nil
	}
	result := map[string]any{}
	for _, path := range a.knownPaths() {
		if have := a.permissions(who, path); len(have) > 0 {
			result[path] = flags(have)
		}
	}
	return result, nil
}

func flags(have grants) map[string]int {
	result := map[string]int{}
	for privilege, down := range have {
		result[privilege] = flag(down)
	}
	return result
}

// knownPaths returns the top levels and the paths of the ACL, sorted.
func (a *access) knownPaths() []string {
	paths := map[string]bool{}
	for _, path := range []string{"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"} {
		paths[path] = true
	}
	a.table.RLock()
	defer a.table.RUnlock()
	for path := range a.acl {
		paths[path] = true
	}
	return sortedKeys(paths)
}

// listACL handles GET /access/acl. It returns all entries if the caller has Sys.Audit or
// Permissions.Modify on /access, and otherwise none.
func listACL(r *request) (any, error) {
	a := r.s.access
	result := []any{}
	visible := a.checkAny(r.who, "/access", "Sys.Audit", "Permissions.Modify") == nil
	a.table.RLock()
	defer a.table.RUnlock()
	for _, path := range sortedKeys(a.acl) {
		if !visible {
			break
		}
		for _, subject := range sortedKeys(a.acl[path]) {
			kind := "user"
			if strings.Contains(subject, "!") {
				kind = "token"
			}
			for _, role := range sortedKeys(a.acl[path][subject]) {
				result = append(result, map[string]any{
					"path": path, "type": kind, "ugid": subject, "roleid": role, "propagate": flag(a.acl[path][subject][role]),
				})
			}
		}
	}
	return result, nil
}

// listRoles handles GET /access/roles.
func listRoles(r *request) (any, error) {
	a := r.s.access
	special := predefinedRoles(a.major)
	a.table.RLock()
	defer a.table.RUnlock()
	result := []any{}
	for _, role := range sortedKeys(a.roles) {
		result = append(result, map[string]any{
			"roleid": role, "privs": strings.Join(sortedKeys(a.roles[role]), ","), "special": flag(special[role] != nil),
		})
	}
	return result, nil
}

// listUsers handles GET /access/users. It returns only the caller, or all users if the
// caller has User.Modify or Sys.Audit on /access/groups.
func listUsers(r *request) (any, error) {
	a := r.s.access
	all := a.checkAny(r.who, "/access/groups", "User.Modify", "Sys.Audit") == nil
	a.table.RLock()
	defer a.table.RUnlock()
	result := []any{}
	for _, user := range sortedKeys(a.users) {
		if all || user == r.who.user() {
			_, realm, _ := strings.Cut(user, "@")
			result = append(result, map[string]any{"userid": user, "enable": 1, "expire": 0, "realm-type": realm})
		}
	}
	return result, nil
}
