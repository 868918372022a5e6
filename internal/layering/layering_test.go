package layering_test

import (
	"os"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/layering"
)

// TestRepository holds numaform itself to its table.
func TestRepository(t *testing.T) {
	t.Parallel()
	found, err := layering.Check(os.DirFS("../.."), layering.Module, layering.Table())
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range found {
		t.Error(violation)
	}
}

// TestTable holds the table to its own order: floors ascend, rows of one floor
// are sorted, and no package stands on two floors.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	previous := layering.Row{Floor: -1}
	for _, row := range layering.Table() {
		if seen[row.Package] {
			t.Errorf("%s is listed twice", row.Package)
		}
		seen[row.Package] = true
		if row.Floor < previous.Floor {
			t.Errorf("%s, floor %d, stands after %s, floor %d", row.Package, row.Floor, previous.Package, previous.Floor)
		}
		if row.Floor == previous.Floor && strings.Compare(row.Package, previous.Package) <= 0 {
			t.Errorf("%s stands after %s on one floor: sort them", row.Package, previous.Package)
		}
		if row.Pure && row.Support {
			t.Errorf("%s is pure and for tests: decide", row.Package)
		}
		previous = row
	}
}
