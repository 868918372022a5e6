package pvesim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Shell runs a command line as root on a host: `pveum pool add`, `pveum pool modify`,
// `pveum pool delete`, `pveum role add`, `pveum role modify`, `pveum role delete`, `pveum
// user add`, `pveum user delete`, `pveum user token add`, `pveum user token modify`, `pveum
// user token remove`, `pveum acl modify`, `qm set`, `qm template` and `qm destroy`. For a
// new token it returns the secret, or with --output-format json the JSON that Proxmox
// prints; other commands have no output. An unknown command or option is an error.
func (s *Server) Shell(line string) (string, error) {
	words, err := shellWords(line)
	if err != nil {
		return "", fmt.Errorf("running %q: %w", line, err)
	}
	command, err := parseCommand(words)
	if err == nil {
		var out string
		if out, err = s.administer(command); err == nil {
			return out, nil
		}
	}
	return "", fmt.Errorf("running %q: %w", line, err)
}

// shellCommand is a command with its arguments and options.
type shellCommand struct {
	name    string // such as "pveum role add"
	args    []string
	options map[string]string
}

// shellWords splits at blanks outside quotes.
func shellWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	quote, begun := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && strings.ContainsRune(`"'`, r):
			quote, begun = r, true
		case quote == 0 && r == ' ':
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("unmatched %c", quote)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// subcommands returns the number of words that form the command's name.
func subcommands(words []string) int {
	switch {
	case len(words) > 0 && words[0] == "qm":
		return 2
	case len(words) > 2 && words[0] == "pveum" && words[1] == "user" && words[2] == "token":
		return 4
	}
	return 3
}

func parseCommand(words []string) (shellCommand, error) {
	c := shellCommand{options: map[string]string{}}
	n := subcommands(words)
	if len(words) < n {
		return c, fmt.Errorf("no such command")
	}
	c.name = strings.Join(words[:n], " ")
	for i := n; i < len(words); i++ {
		option, ok := strings.CutPrefix(words[i], "--")
		if !ok {
			c.args = append(c.args, words[i])
			continue
		}
		if i++; i == len(words) {
			return c, fmt.Errorf("option %s has no value", option)
		}
		c.options[option] = words[i]
	}
	return c, nil
}

// take returns the arguments, or an error if their number or an option is wrong.
func (c shellCommand) take(count int, options ...string) ([]string, error) {
	for option := range c.options {
		if !holds(options, option) {
			return nil, fmt.Errorf("unknown option: %s", option)
		}
	}
	if len(c.args) != count {
		return nil, fmt.Errorf("%d arguments, want %d", len(c.args), count)
	}
	return c.args, nil
}

// administer runs a command.
func (s *Server) administer(c shellCommand) (string, error) {
	switch c.name {
	case "pveum pool add":
		return "", s.asRoot(c, http.MethodPost, func(name string) (string, map[string]string) { return "/pools", map[string]string{"poolid": name} })
	case "pveum pool modify":
		return "", s.asRoot(c, http.MethodPut, func(name string) (string, map[string]string) { return "/pools/" + name, nil }, "vms")
	case "pveum pool delete":
		return "", s.asRoot(c, http.MethodDelete, func(name string) (string, map[string]string) { return "/pools/" + name, nil })
	case "pveum role delete":
		return "", s.asRoot(c, http.MethodDelete, func(name string) (string, map[string]string) { return "/access/roles/" + name, nil })
	case "pveum user delete":
		return "", s.asRoot(c, http.MethodDelete, func(name string) (string, map[string]string) { return "/access/users/" + name, nil })
	case "pveum user token remove":
		if len(c.args) == 2 {
			c.args = []string{c.args[0] + "/token/" + c.args[1]}
		}
		return "", s.asRoot(c, http.MethodDelete, func(token string) (string, map[string]string) { return "/access/users/" + token, nil })
	case "qm destroy":
		return "", s.onGuest(c, http.MethodDelete, "")
	case "qm template":
		return "", s.onGuest(c, http.MethodPost, "/template")
	case "qm set":
		return "", s.onGuest(c, http.MethodPut, "/config")
	}
	return s.access.administer(c)
}

// onGuest runs a command for a guest on the guest's host.
func (s *Server) onGuest(c shellCommand, method, below string) error {
	options := []string{"agent", "boot", "delete", "name", "tags", "description"}
	if below != "/config" {
		options = nil
	}
	return s.asRoot(c, method, func(id string) (string, map[string]string) {
		vmid, _ := strconv.Atoi(id)
		guest, _ := s.Guest(vmid)
		return fmt.Sprintf("/nodes/%s/qemu/%s%s", guest.Host, id, below), nil
	}, options...)
}

// asRoot sends the request for a command with one argument.
func (s *Server) asRoot(c shellCommand, method string, target func(arg string) (path string, more map[string]string), options ...string) error {
	args, err := c.take(1, options...)
	if err != nil {
		return err
	}
	path, more := target(args[0])
	given := map[string]value{}
	for name, text := range c.options {
		given[name] = value{text: text}
	}
	for name, text := range more {
		given[name] = value{text: text}
	}
	if _, failed := s.dispatch(s.rootRequest(method, path), given); failed != nil {
		return failed
	}
	return nil
}

// rootRequest returns a request of a program that runs as root on a host.
func (s *Server) rootRequest(method, path string) *request {
	return &request{s: s, ctx: context.Background(), method: method, path: path, who: rootUser}
}

// Pvesh runs `pvesh get PATH` or `pvesh set PATH` as root on a host, and returns the data
// as JSON.
func (s *Server) Pvesh(args ...string) ([]byte, error) {
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("running pvesh %s: %w", strings.Join(args[:min(len(args), 2)], " "), err)
	}
	c, err := parseCommand(slices.Concat([]string{"pvesh"}, args))
	if err != nil {
		return fail(err)
	}
	verb, path, _ := strings.Cut(strings.TrimPrefix(c.name, "pvesh "), " ")
	method := map[string]string{"get": http.MethodGet, "set": http.MethodPut}[verb]
	if method == "" || len(c.args) > 0 {
		return fail(errors.New("no such command"))
	}
	given := map[string]value{}
	for name, text := range c.options {
		if name != "output-format" {
			given[name] = value{text: text}
		}
	}
	data, failed := s.dispatch(s.rootRequest(method, path), given)
	if failed != nil {
		return fail(failed)
	}
	if raw, ok := data.(preRendered); ok {
		return raw, nil
	}
	return json.Marshal(data)
}

// administer changes users, tokens, roles or entries of the access control list.
func (a *access) administer(c shellCommand) (out string, err error) {
	a.table.Lock()
	defer a.table.Unlock()
	defer a.forget()
	var args []string
	switch c.name {
	case "pveum user add":
		if args, err = c.take(1); err == nil {
			err = a.addUser(args[0])
		}
	case "pveum user token add", "pveum user token modify":
		if args, err = c.take(2, "privsep", "expire", "output-format"); err == nil {
			out, err = a.setToken(args[0]+"!"+args[1], args[0], c)
		}
	case "pveum role add", "pveum role modify":
		if args, err = c.take(1, "privs", "append"); err == nil {
			err = a.setRole(args[0], c)
		}
	case "pveum acl modify":
		if args, err = c.take(1, "users", "tokens", "roles", "propagate"); err == nil {
			err = a.setACL(args[0], c)
		}
	default:
		err = fmt.Errorf("no such command")
	}
	return out, err
}

func (a *access) addUser(user string) error {
	if _, known := a.users[user]; known {
		return fmt.Errorf("create user failed: user '%s' already exists", user)
	}
	a.users[user] = ""
	return nil
}

// setToken adds a token with a secret, or changes whether it has all privileges of its user
// and when it expires.
func (a *access) setToken(id, user string, c shellCommand) (string, error) {
	token, known := a.tokens[id]
	add := c.name == "pveum user token add"
	if _, exists := a.users[user]; !exists {
		return "", fmt.Errorf("no such user ('%s')", user)
	}
	switch {
	case add && known:
		return "", fmt.Errorf("token %s already exists", id)
	case !add && !known:
		return "", fmt.Errorf("no such token '%s'", id)
	case add:
		token = Token{ID: id, Secret: DefaultTokenSecret}
	}
	if err := token.set(c.options); err != nil {
		return "", err
	}
	a.tokens[id] = token
	switch {
	case !add:
		return "", nil
	case c.options["output-format"] == "json":
		return fmt.Sprintf(`{"full-tokenid":%q,"info":{"privsep":%q},"value":%q}`, id, c.options["privsep"], token.Secret), nil
	}
	return token.Secret, nil
}

// set applies options to a token.
func (t *Token) set(options map[string]string) (err error) {
	if separate, given := options["privsep"]; given {
		t.FullPrivileges = separate == "0"
	}
	if text, given := options["expire"]; given {
		t.Expire, err = expiry(text)
	}
	return err
}

// expiry parses the expiry time of a token: in seconds since 1970, or 0 for never.
func expiry(text string) (time.Time, error) {
	seconds, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || seconds < 0:
		return time.Time{}, fmt.Errorf("expire: type check ('integer') failed - got '%s'", text)
	case seconds == 0:
		return time.Time{}, nil
	}
	return time.Unix(seconds, 0), nil
}

func (a *access) setRole(name string, c shellCommand) error {
	modify := c.name == "pveum role modify"
	if known := a.roles[name] != nil; known != modify {
		return fmt.Errorf("role '%s' exists: %t", name, known)
	}
	if !modify || c.options["append"] != "1" {
		a.roles[name] = map[string]bool{}
	}
	for _, privilege := range splitList(c.options["privs"]) {
		if !a.roles["Administrator"][privilege] {
			return fmt.Errorf("invalid privilege '%s'", privilege)
		}
		a.roles.add(name, privilege)
	}
	return nil
}

// setACL adds entries without changing others.
func (a *access) setACL(path string, c shellCommand) error {
	var entries []ACL
	for _, subject := range append(splitList(c.options["users"]), splitList(c.options["tokens"])...) {
		for _, role := range splitList(c.options["roles"]) {
			entries = append(entries, ACL{Path: path, Subject: subject, Role: role, NoPropagate: c.options["propagate"] == "0"})
		}
	}
	if len(entries) == 0 {
		return fmt.Errorf("--roles, and --users or --tokens, are required")
	}
	return a.readACL(entries)
}
