package term

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/numaform/numaform/internal/wrap"
)

const (
	// columnGap separates the columns of a table.
	columnGap = 2
	// leastText is the width up to which a column is not wrapped, to keep text such as 12
	// GiB on one line.
	leastText = 16
	// leastName is the width up to which names are not shortened.
	leastName = 6
)

// Table aligns the columns of rows, with indent spaces before the first one. If the table
// is wider than the terminal, the widest columns of text are wrapped at spaces and commas,
// and names are shortened with … only if wrapping is not enough. Cells must not contain
// line breaks.
func (t Terminal) Table(indent int, rows [][]string) string {
	columns := 0
	for _, row := range rows {
		columns = max(columns, len(row))
	}
	widths, least := make([]int, columns), make([]int, columns)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], ansi.StringWidth(cell))
			for _, word := range wrap.Words(strings.Fields(cell), " ", 1, 1) {
				least[i] = max(least[i], ansi.StringWidth(word))
			}
		}
	}
	for i := range widths {
		least[i] = min(widths[i], max(least[i], leastText))
	}
	if t.Wrap {
		limit := t.Width - indent - columnGap*(columns-1)
		narrow(widths, limit, func(i int) bool { return widths[i] > least[i] })
		narrow(widths, limit, func(i int) bool { return widths[i] > leastName })
	}

	var out strings.Builder
	for _, row := range rows {
		out.WriteString(rowLines(row, widths, indent))
	}
	return out.String()
}

// narrow reduces the largest width for which can returns true, or the last of several, by
// one column at a time until the sum is at most limit.
func narrow(widths []int, limit int, can func(column int) bool) {
	for {
		sum, widest := 0, -1
		for i, width := range widths {
			sum += width
			if can(i) && (widest < 0 || width >= widths[widest]) {
				widest = i
			}
		}
		if sum <= limit || widest < 0 {
			return
		}
		widths[widest]--
	}
}

// rowLines returns the lines of one row.
func rowLines(row []string, widths []int, indent int) string {
	cells, height := make([][]string, len(row)), 1
	for i, cell := range row {
		cells[i] = []string{cell}
		if ansi.StringWidth(cell) > widths[i] {
			cells[i] = wrap.Words(strings.Fields(cell), " ", widths[i], widths[i])
		}
		height = max(height, len(cells[i]))
	}
	var out strings.Builder
	for n := range height {
		line := strings.Repeat(" ", indent)
		for i, lines := range cells {
			part := ""
			if n < len(lines) {
				part = shorten(lines[n], widths[i])
			}
			line += part + strings.Repeat(" ", widths[i]-ansi.StringWidth(part)+columnGap)
		}
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
}
