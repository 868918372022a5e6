package pvesim

import (
	"fmt"
	"strings"
	"sync"
)

// access contains the users, tokens, roles and the access control list.
type access struct {
	secret []byte
	major  int
	// hidesReason is set if the error is the same for all refused credentials.
	hidesReason bool
	// pools returns the pool of a path such as /vms/100, or "".
	pools func(path string) string

	// table guards the fields below up to acl, which Shell and the API change.
	table  sync.RWMutex
	users  map[string]string // password by user; users with an empty password cannot log in
	tokens map[string]Token
	roles  roleSet
	acl    map[string]map[string]grants // by path, then subject

	// mu guards cache, which is cleared when a pool's members or the fields above change.
	mu    sync.RWMutex
	cache map[string]grants
}

// grants maps a role or privilege to whether it propagates.
type grants map[string]bool

func newAccess(cfg Config) (*access, error) {
	a := &access{
		secret: newSecret(), major: cfg.major(), hidesReason: cfg.from92(), roles: predefinedRoles(cfg.major()),
		users: map[string]string{rootUser: cfg.RootPassword}, tokens: map[string]Token{},
		acl: map[string]map[string]grants{}, cache: map[string]grants{},
	}
	for _, u := range cfg.Users {
		a.users[u.ID] = u.Password
	}
	for _, t := range cfg.Tokens {
		user, name, ok := strings.Cut(t.ID, "!")
		if !ok || name == "" || !strings.Contains(user, "@") {
			return nil, fmt.Errorf("reading token %q: must be user@realm!name", t.ID)
		}
		if _, known := a.users[user]; !known {
			a.users[user] = ""
		}
		a.tokens[t.ID] = t
	}
	for _, r := range cfg.Roles {
		for _, p := range r.Privileges {
			if !a.roles["Administrator"][p] {
				return nil, fmt.Errorf("reading role %s: invalid privilege '%s': Proxmox VE %s has none of that name", r.Name, p, cfg.Version)
			}
		}
		a.roles.add(r.Name, r.Privileges...)
	}
	return a, a.readACL(cfg.ACL)
}

func (a *access) readACL(list []ACL) error {
	for _, entry := range list {
		if a.roles[entry.Role] == nil {
			return fmt.Errorf("reading acl of %s: no role %q", entry.Path, entry.Role)
		}
		_, isToken := a.tokens[entry.Subject]
		if _, isUser := a.users[entry.Subject]; !isUser && !isToken {
			return fmt.Errorf("reading acl of %s: no user or token %q", entry.Path, entry.Subject)
		}
		path := normalizePath(entry.Path)
		if a.acl[path] == nil {
			a.acl[path] = map[string]grants{}
		}
		if a.acl[path][entry.Subject] == nil {
			a.acl[path][entry.Subject] = grants{}
		}
		a.acl[path][entry.Subject][entry.Role] = !entry.NoPropagate
	}
	return nil
}

func normalizePath(path string) string { return "/" + strings.Join(splitPath(path), "/") }

// forget clears the cache, after a pool's members or the fields that table guards changed.
func (a *access) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cache = map[string]grants{}
}

// permissions returns the privileges of a user or token on a path. A token with separate
// privileges has a privilege only if its user also has the privilege.
func (a *access) permissions(who identity, path string) grants {
	a.table.RLock()
	defer a.table.RUnlock()
	return a.known(who, path)
}

// known is like permissions. The caller must hold a.table.
func (a *access) known(who identity, path string) grants {
	if who.isRoot() {
		return a.privileges(grants{"Administrator": true})
	}
	key := string(who) + "\x00" + path
	a.mu.RLock()
	have, ok := a.cache[key]
	a.mu.RUnlock()
	if ok {
		return have
	}
	result := a.compute(who, path)
	a.mu.Lock()
	a.cache[key] = result
	a.mu.Unlock()
	return result
}

func (a *access) compute(who identity, path string) grants {
	if !who.isToken() {
		return a.privileges(a.rolesOn(string(who), path))
	}
	owner := a.known(identity(who.user()), path)
	if a.tokens[string(who)].FullPrivileges {
		return owner
	}
	result := grants{}
	for p, down := range a.privileges(a.rolesOn(string(who), path)) {
		if ownerDown, ok := owner[p]; ok {
			result[p] = down && ownerDown
		}
	}
	return result
}

// rolesOn returns a subject's roles on a path. It walks down the path: a deeper entry
// replaces inherited entries. Then it adds the roles of the path's pool.
func (a *access) rolesOn(subject, path string) grants {
	path = normalizePath(path)
	roles := a.rolesAt(subject, "/", path == "/")
	at := ""
	for _, step := range splitPath(path) {
		at += "/" + step
		if fresh := a.rolesAt(subject, at, at == path); len(fresh) > 0 {
			roles = fresh
		}
	}
	pool := a.pools(path)
	if _, none := roles["NoAccess"]; pool == "" || none {
		return roles
	}
	for role := range a.rolesOn(subject, "/pool/"+pool) {
		if _, ok := roles[role]; !ok {
			roles[role] = false
		}
	}
	return roles
}

// rolesAt returns the effective roles of one entry: all roles at the path itself, and only
// the propagating roles of a parent path.
func (a *access) rolesAt(subject, at string, last bool) grants {
	roles := grants{}
	for role, down := range a.acl[at][subject] {
		if down || last {
			roles[role] = down
		}
	}
	return roles
}

// privileges returns the union of the roles' privileges; NoAccess removes all.
func (a *access) privileges(roles grants) grants {
	result := grants{}
	if _, none := roles["NoAccess"]; none {
		return result
	}
	for role, down := range roles {
		for p := range a.roles[role] {
			result[p] = result[p] || down
		}
	}
	return result
}

// check returns an error unless the caller has all of the privileges on the path.
func (a *access) check(who identity, path string, privileges ...string) *apiError {
	have := a.permissions(who, path)
	for _, p := range privileges {
		if _, ok := have[p]; !ok {
			return permissionError(path + ", " + p)
		}
	}
	return nil
}

// checkAny returns an error unless the caller has one of the privileges on the path.
func (a *access) checkAny(who identity, path string, privileges ...string) *apiError {
	have := a.permissions(who, path)
	for _, p := range privileges {
		if _, ok := have[p]; ok {
			return nil
		}
	}
	return permissionError(path + ", " + strings.Join(privileges, "|"))
}
