package guard

import "regexp"

// secretPattern matches one kind of secret.
type secretPattern struct {
	name    string
	pattern *regexp.Regexp
}

// secretPatterns match text that looks like a secret of these kinds. They are broad,
// because no text that numaform writes resembles a secret.
var secretPatterns = []secretPattern{
	{"a Proxmox API token", regexp.MustCompile(`PVEAPIToken=|[^\s@!]+@[^\s@!]+![^\s=]+=[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-`)},
	{"a Proxmox ticket", regexp.MustCompile(`PVE:[^\s:]+:[0-9A-F]{8}::`)},
	{"a k3s or RKE2 join token", regexp.MustCompile(`K10[0-9a-zA-Z]{8,}::`)},
	{"a bootstrap token", regexp.MustCompile(`(?:^|[^a-z0-9.-])[a-z0-9]{6}\.[a-z0-9]{16}(?:$|[^a-z0-9.-])`)},
	{"a private key", regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----`)},
	{"a kubeconfig", regexp.MustCompile(`client-key-data|(?m:^\s*"?kind"?:\s*"?Config"?,?\s*$)`)},
	{"a JSON web token", regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.`)},
	{"a cloud access key", regexp.MustCompile(`\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`)},
	{"a password hash", regexp.MustCompile(`\$(?:1|5|6|2[aby]|y|7|argon2id?)\$[^\s$]+\$`)},
	{"a cloud-init document", regexp.MustCompile(`(?m:^#cloud-config\b)`)},
	// Require four characters: a class may be named "secret", and a VM's description
	// contains a text such as "class secret: 8 vCPUs".
	{"a password or token", regexp.MustCompile(`(?i)\b(?:password|passwd|passphrase|secret|token|api[_-]?key)["']?\s*[:=]\s*\S{4,}`)},
}

// shortestSecret is the length of the shortest string that any pattern matches.
const shortestSecret = len("$1$x$")

// secretIn returns the kinds of secret that a string looks like.
func secretIn(s string) []string {
	if len(s) < shortestSecret {
		return nil
	}
	var kinds []string
	for _, p := range secretPatterns {
		if p.pattern.MatchString(s) {
			kinds = append(kinds, p.name)
		}
	}
	return kinds
}

// secrets denies strings that look like a secret, anywhere in v, including keys. The
// message names the kind of secret, never the value.
func (c *checker) secrets(address string, v any) {
	switch t := v.(type) {
	case string:
		if c.harmless[t] {
			return
		}
		kinds := secretIn(t)
		for _, kind := range kinds {
			c.deny(RuleSecret, address, "a planned value looks like "+kind+": git, plan and state would contain it; pass it to the guest in its seed")
		}
		c.harmless[t] = len(kinds) == 0
	case []any:
		for _, e := range t {
			c.secrets(address, e)
		}
	case map[string]any:
		for name, e := range t {
			c.secrets(address, name)
			c.secrets(address, e)
		}
	}
}
