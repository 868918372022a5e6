package cpumap

import (
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/numaform/numaform/internal/wrap"
	"github.com/numaform/numaform/topology"
)

// Options are the options of Text.
type Options struct {
	// Width is the maximum number of characters in a line; 0 means 100.
	Width int
	// Brief omits the sources of the facts and the confidence in them: see Facts.
	Brief bool
}

// Facts returns sentences about the sources of a host's facts and the confidence in them.
func Facts(host *topology.Host) []string {
	if len(host.CPUs) == 0 {
		return nil
	}
	l := layout{host: host}
	return slices.DeleteFunc([]string{l.origin(), l.confidence()}, func(text string) bool { return text == "" })
}

const (
	defaultWidth = 100
	// narrow is the width below which cells are drawn below their group's name.
	narrow = 60
)

// Text draws a host without color: one sign for each CPU, siblings side by side in
// brackets, one or more lines for each group of CPUs that share a cache, and a legend. A line
// exceeds Options.Width only if a name in it is longer.
func Text(host *topology.Host, owners Ownership, opts Options) string {
	w := &writer{layout: newLayout(host, owners), width: opts.Width, brief: opts.Brief}
	if w.width <= 0 {
		w.width = defaultWidth
	}
	w.header()
	w.drawNodes()
	if len(host.CPUs) > 0 {
		w.legend()
	}
	return w.out.String()
}

type writer struct {
	*layout
	width int
	brief bool
	out   strings.Builder
}

// wrap writes words joined by a separator, and indents lines after the first.
func (w *writer) wrap(indent int, separator string, words ...string) {
	lines := wrap.Words(words, separator, w.width, w.width-indent)
	w.out.WriteString(strings.Join(lines, "\n"+strings.Repeat(" ", indent)) + "\n")
}

// header writes the host's name and model, on one line if they fit, and its facts.
func (w *writer) header() {
	id, model := w.host.ID().String(), printable(w.host.Model)
	switch {
	case model == "":
		w.wrap(2, "", id)
	case ansi.StringWidth(id)+ansi.StringWidth(model)+2 <= w.width:
		w.wrap(2, "", id+"  "+model)
	default:
		w.wrap(2, "", id)
		w.prose(model)
	}
	if w.host.Problem != "" {
		w.wrap(2, " ", strings.Fields("problem: "+printable(w.host.Problem))...)
	}
	if len(w.host.CPUs) == 0 {
		w.wrap(2, " ", "  CPUs unknown")
	} else {
		w.wrap(2, ", ", strings.Split("  "+w.shape(), ", ")...)
		totals := w.totals()
		totals[0] = "  " + totals[0]
		w.wrap(2, ", ", totals...)
		if !w.brief {
			w.prose(Facts(w.host)...)
		}
	}
	w.prose(w.warnings()...)
}

// prose writes sentences, each indented on a new line.
func (w *writer) prose(sentences ...string) {
	for _, sentence := range sentences {
		if sentence != "" {
			w.wrap(4, " ", strings.Split("  "+sentence, " ")...)
		}
	}
}

func (w *writer) drawNodes() {
	labels := 0
	for _, node := range w.nodes {
		for _, group := range node.groups {
			labels = max(labels, ansi.StringWidth(groupTitle(group)))
		}
	}
	for _, node := range w.nodes {
		w.out.WriteByte('\n')
		words := []string{node.title, node.memory, node.huge, node.near}
		w.wrap(2, "   ", slices.DeleteFunc(words, func(word string) bool { return word == "" })...)
		if len(node.groups) == 0 {
			w.wrap(2, "", "  "+node.empty)
		}
		for _, group := range node.groups {
			w.group(group, labels)
		}
	}
	if !w.offline.IsEmpty() {
		w.out.WriteByte('\n')
		w.wrap(2, "  ", "offline", w.offline.String())
	}
}

func groupTitle(group groupBox) string { return group.label + "  " + group.cpus.String() }

// group writes the cells after the group's name, or below it if the line is narrow or the
// names are so long that little room would be left.
func (w *writer) group(group groupBox, labels int) {
	cells := make([]string, len(group.cores))
	for i, core := range group.cores {
		for _, id := range core.cpus {
			sign := signFree
			if w.shared() {
				sign = signShared
			}
			if m := w.byCPU[id]; m != nil {
				sign = m.sign
			}
			cells[i] += sign
		}
		if core.sibling {
			cells[i] = "[" + cells[i] + "]"
		}
	}
	if w.width < narrow || labels > w.width/2 {
		w.wrap(4, "", "  "+groupTitle(group))
		cells[0] = "    " + cells[0]
		w.wrap(4, "", cells...)
		return
	}
	cells[0] = "  " + pad(groupTitle(group), labels) + "  " + cells[0]
	w.wrap(labels+4, "", cells...)
}

func (w *writer) legend() {
	w.out.WriteByte('\n')
	if w.shared() {
		w.wrap(4, " ", append([]string{"  " + signShared}, strings.Fields(w.sharedText())...)...)
	} else {
		w.out.WriteString("  " + signFree + " free\n")
	}
	names := 0
	for _, m := range w.marks {
		names = max(names, ansi.StringWidth(m.owner))
	}
	for _, m := range w.marks {
		text := "  " + m.sign + " " + pad(m.owner, min(names, w.width/3))
		if m.kind == markDisputed {
			text = fmt.Sprintf("  %s claimed twice: %s", m.sign, m.owner)
		}
		w.wrap(6, "  ", text, topology.Count(m.cpus.Size(), "CPU"), m.cpus.String())
	}
	w.prose(w.floating())
}

// pad adds spaces to a text that has fewer columns.
func pad(text string, columns int) string {
	return text + strings.Repeat(" ", max(0, columns-ansi.StringWidth(text)))
}
