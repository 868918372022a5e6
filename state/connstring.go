package state

import (
	"cmp"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// connVariable is the variable with the connection string of the pg backend, including
// credentials.
const connVariable = "PG_CONN_STR"

// target is the address of a PostgreSQL server.
type target struct{ network, address string }

// socketName is the file name of a PostgreSQL server's socket.
func socketName(port string) string { return ".s.PGSQL." + port }

// connString is a PostgreSQL connection string, a URL or a list of name=value.
type connString struct {
	text       string
	location   *url.URL
	host, port string
}

// settingOf matches one name=value of a connection string.
var settingOf = regexp.MustCompile(`([a-z_]+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s']\S*)`)

// parseConn parses a connection string and the variables that complete it. It returns
// false if the client must use the server's own name, or anything other than a single
// address: such a connection cannot go through a fence.
func parseConn(text string, env map[string]string) (connString, bool) {
	c := connString{text: text}
	settings := map[string]string{
		"host": env["PGHOST"], "port": env["PGPORT"], "hostaddr": env["PGHOSTADDR"],
		"sslmode": env["PGSSLMODE"], "service": env["PGSERVICE"], "krbsrvname": env["PGKRBSRVNAME"],
	}
	given, ok := c.settings()
	for name, value := range given {
		settings[name] = cmp.Or(value, settings[name])
	}
	c.host, c.port = cmp.Or(settings["host"], "localhost"), cmp.Or(settings["port"], "5432")
	named := settings["sslmode"] == "verify-full" || settings["krbsrvname"] != "" || settings["krbspn"] != ""
	elsewhere := settings["service"] != "" || settings["hostaddr"] != "" || strings.ContainsAny(c.host+c.port, `,@\`)
	return c, ok && !named && !elsewhere
}

// settings returns the settings in the connection string itself. It returns false for a URL
// that cannot be parsed, or that has a host or a port among its parameters.
func (c *connString) settings() (map[string]string, bool) {
	settings := map[string]string{}
	if !strings.HasPrefix(c.text, "postgres://") && !strings.HasPrefix(c.text, "postgresql://") {
		for _, found := range settingOf.FindAllStringSubmatch(c.text, -1) {
			settings[found[1]] = strings.Trim(found[2], "'")
		}
		return settings, true
	}
	location, err := url.Parse(c.text)
	if err != nil {
		return nil, false
	}
	c.location = location
	for name, values := range location.Query() {
		settings[name] = values[0]
	}
	if settings["host"]+settings["port"] != "" {
		return nil, false
	}
	settings["host"], settings["port"] = location.Hostname(), location.Port()
	return settings, true
}

// target returns the server's address.
func (c *connString) target() target {
	if strings.HasPrefix(c.host, "/") {
		return target{"unix", filepath.Join(c.host, socketName(c.port))}
	}
	return target{"tcp", net.JoinHostPort(c.host, c.port)}
}

// at returns the connection string with another address for the same server.
func (c *connString) at(host, port string) string {
	if c.location == nil {
		return c.text + " host='" + host + "' port=" + port
	}
	moved := *c.location
	moved.Host = net.JoinHostPort(host, port)
	if strings.HasPrefix(host, "/") {
		moved.Host = ""
		query := moved.Query()
		query.Set("host", host)
		query.Set("port", port)
		moved.RawQuery = query.Encode()
	}
	return moved.String()
}
