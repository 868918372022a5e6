package cli

import (
	"slices"

	"github.com/charmbracelet/x/ansi"
)

// column is a column of a table.
type column struct {
	title string
	// drop is the order in which columns are left out of a table that is wider than the
	// terminal, from 1. A column with 0 always stays.
	drop int
	// text is true for a column that may be wrapped.
	text bool
}

// textWidth is the least width of a column that is wrapped.
const textWidth = 16

// columns prints a table. Rows may have fewer cells than columns; an empty cell is printed
// as "-". If the table is wider than the terminal, it leaves out columns, except with wide:
// then, as with kubectl, its lines can be longer than the terminal is wide.
func (w *printer) columns(columns []column, rows [][]string, wide bool) {
	widths := make([]int, len(columns))
	total := 2 * (len(columns) - 1)
	for i, c := range columns {
		widths[i] = ansi.StringWidth(c.title)
		for _, row := range rows {
			if i < len(row) {
				widths[i] = max(widths[i], ansi.StringWidth(row[i]))
			}
		}
		if c.text {
			widths[i] = min(widths[i], textWidth)
		}
		total += widths[i]
	}

	shown := make([]int, 0, len(columns)) // indexes of columns
	for i := range columns {
		shown = append(shown, i)
	}
	terminal := w.Terminal
	terminal.Wrap = terminal.Wrap && !wide
	for terminal.Wrap && total > terminal.Width {
		// If several columns have the same drop, leave out the last of them first.
		next := -1
		for _, i := range shown {
			if columns[i].drop > 0 && (next < 0 || columns[i].drop <= columns[next].drop) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		total -= widths[next] + 2
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == next })
	}

	table := make([][]string, len(rows)+1)
	for _, i := range shown {
		table[0] = append(table[0], w.Bold(columns[i].title))
		for n, row := range rows {
			cell := "-"
			if i < len(row) && row[i] != "" {
				cell = row[i]
			}
			table[n+1] = append(table[n+1], cell)
		}
	}
	w.raw(terminal.Table(0, table))
}
