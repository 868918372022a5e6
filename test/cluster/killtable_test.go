package cluster_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// killRow matches a row of the table of kills.
var killRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| (yes|no) \| [^|]+ \|$`)

// TestKillTable checks that docs/faults.md lists exactly the steps at which the controller
// is killed.
func TestKillTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	var listed, killed []string
	for _, row := range killRow.FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, row[1]+": "+row[2])
	}
	for _, step := range slices.Concat(upSteps(), downSteps(), wakeSteps(), standbySteps()) {
		kept := "yes"
		if step.withDisk {
			kept = "no"
		}
		killed = append(killed, step.name+": "+kept)
	}
	if !slices.Equal(listed, killed) {
		t.Errorf("docs/faults.md lists the kills\n%q\nwant\n%q", listed, killed)
	}
}
