package convert

import "strings"

// Unused returns the options of a peer that a conversion does not meet, as OBJECT PATH.
func Unused(peer Peer, objects []Object, settings Settings) ([]string, error) {
	c := &conversion{Settings: settings, out: map[string]*output{}, used: map[string]bool{}}
	if err := c.run(peer, objects); err != nil {
		return nil, err
	}
	var unused []string
	for _, row := range c.options {
		if !c.used[row.object+" "+row.path] && row.object != oursSecret && !strings.HasPrefix(row.object, "vmOptions") {
			unused = append(unused, row.object+" "+row.path)
		}
	}
	return unused, nil
}

// Rewrite converts a template.
func Rewrite(document, theirs string, values map[string]any) (ours string, notes []string) {
	return rewrite(document, theirs, values)
}
