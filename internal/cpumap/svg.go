package cpumap

import (
	_ "embed" // style.css
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/numaform/numaform/topology"
)

// The dimensions of the image, in its own units, which are pixels at full size.
const (
	pictureWidth = 1000
	margin       = 20
	gap          = 12
	padding      = 12
	minCell      = 21
	maxCell      = 38
	cellHeight   = 32
	coreGap      = 5
	rowGap       = 5
	labelHeight  = 18
	nodeHeader   = 44
	noteHeight   = 18
	// twoLines is the width below which a NUMA node's note gets its own line.
	twoLines   = 360
	hostHeader = 92
	legendRow  = 24
	// titleLetter and noteLetter are the maximum widths of a character in a NUMA node's
	// title and in the note after it.
	titleLetter = 9
	noteLetter  = 7
)

// style is the image's style sheet, for light and dark. Classes o0 to o11 are the owners'
// colors. Consecutive colors are easy to distinguish. style.css has them as numbers,
// which every viewer supports.
//
//go:embed style.css
var style string

// ownerColors is the number of the owners' colors.
const ownerColors = 12

// hatch is the fill pattern for reserved CPUs.
const hatch = `<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
	`<rect class="hatch0" width="6" height="6"/><rect class="hatch1" width="2.4" height="6"/></pattern></defs>` + "\n"

// SVG draws hosts as one self-contained image: light or dark like the reader's system,
// with a tooltip on each CPU. Hosts are in rows, in as many columns as make the image about
// as wide as high. Equal hosts and owners yield identical bytes. It ignores owners of other
// hosts.
func SVG(hosts []topology.Host, owners map[topology.HostID]Ownership) []byte {
	cards := make([]card, len(hosts))
	for i := range hosts {
		cards[i] = newCard(newLayout(&hosts[i], owners[hosts[i].ID()]))
	}
	columns := columnsOf(cards)
	width, height := columns*cardPitch+margin, gridHeight(cards, columns)
	p := &picture{}
	y := margin
	for row := range slices.Chunk(cards, columns) {
		rowHeight := 0
		for column := range row {
			if column > 0 {
				p.printf(`<g transform="translate(%d 0)">`, column*cardPitch)
			}
			p.host(&row[column], y)
			if column > 0 {
				p.printf(`</g>`)
			}
			rowHeight = max(rowHeight, row[column].height)
		}
		y += rowHeight + margin
	}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n",
		width, height, width, height)
	out.WriteString("<title>CPU map</title>\n<style>\n" + style + "</style>\n" + hatch)
	out.WriteString(p.out.String() + "</svg>\n")
	return []byte(out.String())
}

type picture struct{ out strings.Builder }

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.out, format+"\n", args...) }

func (p *picture) rect(class string, at box, radius int) {
	p.printf(`<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="%d"/>`, class, at.x, at.y, at.width, at.height, radius)
}

func (p *picture) text(class string, x, y int, text string) {
	p.printf(`<text class="%s" x="%d" y="%d">%s</text>`, class, x, y, escape(text))
}

// bar draws parts of a whole side by side, except parts too small to see.
func (p *picture) bar(at box, whole int64, parts ...barPart) {
	p.rect("track", at, 2)
	x := at.x
	for _, part := range parts {
		if whole <= 0 {
			return
		}
		length := int(int64(at.width) * part.amount / whole)
		if length > 0 {
			p.rect(part.class, box{x, at.y, length, at.height}, 2)
		}
		x += length
	}
}

type barPart struct {
	class  string
	amount int64
}

// host draws one host's card.
func (p *picture) host(c *card, y int) {
	l := c.layout
	p.printf(`<g>`)
	p.rect("card", box{margin, y, pictureWidth - 2*margin, c.height}, 14)
	p.header(l, y)
	top := y + hostHeader
	for _, row := range c.rows {
		for i, node := range row.nodes {
			x := margin + padding + gap/2 + i*(row.width+gap)
			p.node(l, &row, node, box{x, top, row.width, row.height})
		}
		top += row.height + gap
	}
	for _, item := range c.legend {
		x, y := margin+padding+gap/2+item.x, top+6+item.row*legendRow
		if item.class == "" {
			p.text("note", x, y+14, item.text)
			continue
		}
		p.printf(`<g class="%s">`, item.class)
		p.rect("cpu", box{x, y, 20, 18}, 4)
		if item.sign != "" {
			p.text("sign", x+10, y+13, item.sign)
		}
		p.printf(`</g>`)
		p.text("name", x+27, y+14, item.text)
	}
	p.printf(`</g>`)
}

// header draws a host's name, model and facts, and a bar with the owners' shares of its
// CPUs, in the order of the legend.
func (p *picture) header(l *layout, y int) {
	x, right := margin+padding+gap/2, pictureWidth-margin-padding-gap/2
	p.text("h1", x, y+32, l.host.ID().String())
	p.text("sub", x, y+52, printable(l.host.Model))
	if len(l.host.CPUs) == 0 {
		p.text("warn", x, y+74, "CPUs unknown")
		return
	}
	p.text("num end", right, y+32, strings.Join(l.totals(), " · "))
	p.text("sub end", right, y+52, l.shape())
	if l.host.Problem != "" {
		p.text("warn", x, y+86, fit(printable(l.host.Problem), right-x, 7))
	}
	parts := make([]barPart, len(l.marks), len(l.marks)+1)
	for i := range l.marks {
		parts[i] = barPart{class: "bar-" + l.marks[i].class(), amount: int64(l.marks[i].cpus.Size())}
	}
	if shared := min(l.sharedVCPUs, l.free); shared > 0 {
		parts = append(parts, barPart{class: "bar-shared", amount: int64(shared)})
	}
	p.bar(box{x, y + 64, right - x, 8}, int64(l.host.OnlineCPUs().Size()), parts...)
}

// box is a rectangle in the image.
type box struct{ x, y, width, height int }

func (p *picture) node(l *layout, row *nodeRow, node nodeBox, at box) {
	p.rect("node", at, 10)
	p.text("h2", at.x+padding, at.y+22, node.title)
	noteY := at.y + row.header - 22
	if row.header == nodeHeader {
		note := node.memory
		if node.near != "" {
			note = node.near + " · " + note
		}
		p.text("note end", at.x+at.width-padding, noteY, note)
	} else {
		p.text("note", at.x+padding, noteY, node.memory)
		room := at.width - 3*padding - titleLetter*len(node.title)
		p.printf(`<g><title>%s</title>`, escape(node.near))
		p.text("note end", at.x+at.width-padding, at.y+22, fit(node.near, room, noteLetter))
		p.printf(`</g>`)
	}
	if node.boundShare >= 0 {
		part := barPart{"used", int64(node.boundShare * 1000)}
		if node.boundShare > 1 {
			part = barPart{"bar-clash", 1000}
		}
		p.bar(box{at.x + padding, noteY + 8, at.width - 2*padding, 5}, 1000, part)
	}
	if len(node.groups) == 0 {
		p.text("note", at.x+padding, at.y+row.header+14, fit(node.empty, at.width-2*padding, 6))
	}
	for _, group := range row.flow(node.groups) {
		x, y := at.x+padding+group.at.x, at.y+row.header+group.at.y
		p.group(l, group, box{x, y, group.at.width, group.at.height})
	}
}

// group draws a group's cores, the threads of each side by side.
func (p *picture) group(l *layout, group placedGroup, at box) {
	p.printf(`<g><title>%s: CPUs %s</title>`, escape(group.label), group.cpus)
	p.text("label", at.x, at.y+12, fit(group.label, at.width+coreGap, 6))
	p.printf(`</g>`)
	for i, core := range group.cores {
		x := at.x + i%group.columns*group.coreWidth
		y := at.y + labelHeight + i/group.columns*(cellHeight+rowGap)
		for thread, id := range core.cpus {
			p.cpu(l, id, box{x + thread*group.cell, y, group.cell, cellHeight})
		}
		if core.sibling && len(core.cpus) > 1 {
			p.rect("core", box{x, y, len(core.cpus) * group.cell, cellHeight}, 4)
		}
	}
}

func (p *picture) cpu(l *layout, id int, at box) {
	class, sign, owner := "free", "", "free"
	if l.shared() {
		class, owner = "shared", "free, shared by guests that are not pinned"
	}
	if m := l.byCPU[id]; m != nil {
		class, sign, owner = m.class(), m.sign, m.owner
	}
	known := func(id int) string {
		if id == topology.Unknown {
			return "unknown"
		}
		return fmt.Sprint(id)
	}
	cpu := l.host.CPU(id)
	where := fmt.Sprintf("CPU %d: %s\nNUMA node %s, core %s, %s %s", id, owner,
		known(cpu.NUMANode), known(cpu.Core), level(cpu), known(cpu.L3))
	p.printf(`<g class="%s"><title>%s</title>`, class, escape(where))
	p.rect("cpu", at, 4)
	p.text("id", at.x+at.width/2, at.y+12, fmt.Sprint(id))
	if sign != "" {
		p.text("sign", at.x+at.width/2, at.y+26, sign)
	}
	p.printf(`</g>`)
}

// escape escapes text for XML, and replaces characters that XML does not allow.
func escape(text string) string {
	var out strings.Builder
	if err := xml.EscapeText(&out, []byte(text)); err != nil {
		return ""
	}
	return out.String()
}

// fit truncates text to a width, given the width of a character.
func fit(text string, width, character int) string {
	return ansi.Truncate(text, max(1, width/character), "…")
}
