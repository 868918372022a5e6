package main

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the table in testdata")

// TestGolden checks the table for the small module in testdata; the last file of the archive
// is the expected table.
func TestGolden(t *testing.T) {
	const name = "testdata/module.txtar"
	archive, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	last := len(archive.Files) - 1
	module := fstest.MapFS{}
	for _, file := range archive.Files[:last] {
		module[file.Name] = &fstest.MapFile{Data: file.Data}
	}

	var out bytes.Buffer
	if err := run(&out, module, regexp.MustCompile(besides)); err != nil {
		t.Fatal(err)
	}
	if *update {
		archive.Files[last].Data = out.Bytes()
		if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(archive.Files[last].Data), out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
