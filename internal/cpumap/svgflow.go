package cpumap

import (
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/numaform/numaform/internal/wrap"
	"github.com/numaform/numaform/topology"
)

// cardPitch is the distance between the left edges of two hosts in a row.
const cardPitch = pictureWidth - margin

// card is one host's part of the image.
type card struct {
	layout *layout
	rows   []nodeRow
	legend []legendItem
	height int
}

func newCard(l *layout) card {
	c := card{layout: l, rows: arrange(l.nodes), legend: legendOf(l)}
	c.height = hostHeader + heightOf(c.rows)
	if len(c.legend) > 0 {
		c.height += (c.legend[len(c.legend)-1].row+1)*legendRow + padding + 4
	}
	return c
}

// columnsOf returns the number of columns for which the image is closest to a square. If
// two numbers are equally close, it returns the smaller one.
func columnsOf(cards []card) int {
	best, bestSide := 1, 0
	for columns := 1; columns <= max(1, len(cards)); columns++ {
		side := max(columns*cardPitch+margin, gridHeight(cards, columns))
		if columns == 1 || side < bestSide {
			best, bestSide = columns, side
		}
	}
	return best
}

// gridHeight returns the height of the image with that many columns.
func gridHeight(cards []card, columns int) int {
	height := margin
	for row := range slices.Chunk(cards, columns) {
		highest := 0
		for i := range row {
			highest = max(highest, row[i].height)
		}
		height += highest + margin
	}
	return height
}

// nodeRow is a row of NUMA nodes of the same size, side by side.
type nodeRow struct {
	nodes         []nodeBox
	width, height int
	// cell is the width of a CPU, header the height above the cells.
	cell, header int
}

// arrange arranges NUMA nodes in rows. Fewer nodes are drawn wider. Cells are as wide as
// possible without making the image higher.
func arrange(nodes []nodeBox) []nodeRow {
	rows := arrangeWith(nodes, minCell)
	for cell := maxCell; cell > minCell; cell-- {
		if wider := arrangeWith(nodes, cell); heightOf(wider) == heightOf(rows) {
			return wider
		}
	}
	return rows
}

func arrangeWith(nodes []nodeBox, cell int) []nodeRow {
	perRow := len(nodes)
	switch {
	case perRow == 4:
		perRow = 2
	case perRow > 4:
		perRow = 4
	}
	var rows []nodeRow
	for start := 0; start < len(nodes); start += perRow {
		row := nodeRow{nodes: nodes[start:min(start+perRow, len(nodes))], cell: cell, header: nodeHeader}
		row.width = (pictureWidth - 2*margin - 2*padding - perRow*gap) / perRow
		if row.width < twoLines {
			row.header += noteHeight
		}
		for _, node := range row.nodes {
			height := labelHeight
			for _, group := range row.flow(node.groups) {
				height = max(height, group.at.y+group.at.height)
			}
			row.height = max(row.height, row.header+height+padding)
		}
		rows = append(rows, row)
	}
	return rows
}

func heightOf(rows []nodeRow) int {
	height := 0
	for _, row := range rows {
		height += row.height + gap
	}
	return height
}

// placedGroup is a group with its position within its NUMA node.
type placedGroup struct {
	groupBox
	// columns is the number of cores side by side.
	columns, coreWidth, cell int
	at                       box
}

// flow arranges groups like the words of a text: side by side while there is room. The rows
// of cores in a group are as even as the width allows: ten cores with room for eight per
// row are drawn as five and five.
func (r *nodeRow) flow(groups []groupBox) []placedGroup {
	width := r.width - 2*padding
	placed := make([]placedGroup, len(groups))
	x, y, rowHeight := 0, 0, 0
	for i, group := range groups {
		threads := 1
		for _, core := range group.cores {
			threads = max(threads, len(core.cpus))
		}
		p := placedGroup{groupBox: group, cell: r.cell, coreWidth: threads*r.cell + coreGap}
		most := max(1, (width+coreGap)/p.coreWidth)
		rows := (len(group.cores) + most - 1) / most
		p.columns = (len(group.cores) + rows - 1) / rows
		p.at.width = p.columns*p.coreWidth - coreGap
		p.at.height = labelHeight + rows*(cellHeight+rowGap) - rowGap

		if x > 0 && x+p.at.width > width {
			x, y, rowHeight = 0, y+rowHeight+gap, 0
		}
		p.at.x, p.at.y = x, y
		x += p.at.width + 2*gap
		rowHeight = max(rowHeight, p.at.height)
		placed[i] = p
	}
	return placed
}

// legendItem is one entry of the legend, positioned below the NUMA nodes.
type legendItem struct {
	class, sign, text string
	x, row            int
}

// legendOf arranges the legend's entries like the words of a text.
func legendOf(l *layout) []legendItem {
	if len(l.host.CPUs) == 0 {
		return nil
	}
	items := []legendItem{{class: "free", text: "free"}}
	if l.shared() {
		items[0] = legendItem{class: "shared", text: l.sharedText()}
	}
	for _, m := range l.marks {
		text := fmt.Sprintf("%s · %s", m.owner, topology.Count(m.cpus.Size(), "CPU"))
		if m.kind == markDisputed {
			text = "claimed twice: " + text
		}
		items = append(items, legendItem{class: m.class(), sign: m.sign, text: text})
	}
	if !l.offline.IsEmpty() {
		items = append(items, legendItem{class: "off", text: "offline: " + l.offline.String()})
	}
	x, row := 0, 0
	const room = pictureWidth - 2*margin - 2*padding
	for i := range items {
		items[i].text = fit(items[i].text, room-60, 7)
		width := 34 + 7*ansi.StringWidth(items[i].text) + gap
		if x > 0 && x+width > room {
			x, row = 0, row+1
		}
		items[i].x, items[i].row = x, row
		x += width
	}
	for _, note := range append([]string{l.floating(), l.origin(), l.confidence()}, l.warnings()...) {
		for _, line := range wrap.Words(strings.Fields(note), " ", room/noteLetter, room/noteLetter) {
			if line != "" {
				row++
				items = append(items, legendItem{text: line, row: row})
			}
		}
	}
	return items
}

// class returns the CSS class of a mark's cells.
func (m *mark) class() string {
	switch m.kind {
	case markReserved:
		return "kept"
	case markDisputed:
		return "clash"
	default:
		return fmt.Sprintf("o%d", m.color%ownerColors)
	}
}
