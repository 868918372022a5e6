package convert

import (
	"fmt"
	"strings"
)

// Table returns the table of a peer's options for its migration page, in Markdown.
func Table(peer Peer) string {
	var table strings.Builder
	object := ""
	for _, row := range optionsOf(peer) {
		if row.object != object {
			object = row.object
			fmt.Fprintf(&table, "\n### %s\n\n| option | numaform | remarks |\n|---|---|---|\n", object)
		}
		ours := "not kept"
		switch {
		case row.ours != "" && row.apply == nil:
			ours = "not kept; `" + row.ours + "`"
		case row.ours != "":
			ours = "`" + strings.ReplaceAll(row.ours, ", ", "`, `") + "`"
		case row.apply != nil:
			ours = "kept"
		}
		note := row.note
		if note != "" && !strings.HasPrefix(note, "numaform") && !strings.HasPrefix(note, "karpenter-") {
			note = strings.ToUpper(note[:1]) + note[1:]
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", strings.ReplaceAll(row.path, "|", `\|`), ours, strings.ReplaceAll(note, "|", `\|`))
	}
	return table.String()
}
