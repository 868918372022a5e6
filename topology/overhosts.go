package topology

import (
	"fmt"
	"strings"
)

// HostFact is a sentence about a host. It names the host by its ID, or not at all.
type HostFact struct {
	Host HostID
	Text string
}

// OverHosts returns the sentences of facts, in order. Facts that differ only in the host
// become one sentence about all of their hosts: "each of 40 hosts (lab/pve-1…pve-40) is
// offline".
func OverHosts(facts []HostFact) []string {
	var forms []string
	hosts := map[string][]string{}
	for _, fact := range facts {
		name := fact.Host.String()
		form := replaceName(fact.Text, name)
		if hosts[form] == nil {
			forms = append(forms, form)
		}
		hosts[form] = append(hosts[form], name)
	}
	sentences := make([]string, len(forms))
	for i, form := range forms {
		names := hosts[form]
		if len(names) == 1 {
			sentences[i] = strings.ReplaceAll(form, "\x00", names[0])
			continue
		}
		all := fmt.Sprintf("each of %d hosts (%s)", len(names), Named(names))
		form = strings.ReplaceAll(form, "host \x00", "\x00") // avoid "host each of" and "host the host"
		sentences[i] = strings.ReplaceAll(strings.Replace(form, "\x00", all, 1), "\x00", "the host")
	}
	return sentences
}

// replaceName replaces a name with a NUL character, but not as a part of a longer name:
// lab/pve-1 is a part of lab/pve-1-old and my-lab/pve-1.
func replaceName(text, name string) string {
	inName := func(c byte) bool {
		return c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	var out strings.Builder
	for name != "" {
		at := strings.Index(text, name)
		if at < 0 {
			break
		}
		end := at + len(name)
		if at > 0 && inName(text[at-1]) || end < len(text) && inName(text[end]) {
			out.WriteString(text[:end])
		} else {
			out.WriteString(text[:at] + "\x00")
		}
		text = text[end:]
	}
	return out.String() + text
}
