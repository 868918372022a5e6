package e2e_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
)

var update = flag.Bool("update", false, "rewrite the generated parts of docs/")

// TestReadmeShowsWhatHappens checks that the node file and the plans in
// docs/change-control.md, and the README's picture, match the output of the quickstart.
func TestReadmeShowsWhatHappens(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	readme, err := os.ReadFile(filepath.Join(root, "docs", "change-control.md"))
	if err != nil {
		t.Fatal(err)
	}
	stage := quickstart(t)
	out := run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	content, err := os.ReadFile(filepath.Join(stage.Fleet(), "homelab", "pve-2", "node-pinned-2002.tf"))
	if err != nil {
		t.Fatal(err)
	}
	// The rest repeats values that the VM inherits from its template.
	head, _, _ := strings.Cut(string(content), "  hardware = {")
	_, plans, _ := strings.Cut(out, "Plans\n─────\n")
	shown := block("node file", "diff", prefixed(head, "+")) + "\n" + block("plans", "text", hashless(plans))
	before, rest, _ := strings.Cut(string(readme), "<!-- node file: ")
	_, after, found := strings.Cut(rest, "<!-- end of plans -->\n")
	if !found {
		t.Fatal("docs/change-control.md does not mark its node file and plans")
	}
	if want := before + shown + after; want != string(readme) {
		t.Errorf("docs/change-control.md differs from the output of the quickstart: run go test ./test/e2e -run Readme -update\n%s", shown)
		if *update {
			if err := os.WriteFile(filepath.Join(root, "docs", "change-control.md"), []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	picture := run(t, stage, cli.ExitOK, "topology", "--host", "pve-2", "-o", "svg")
	path := filepath.Join(root, "docs", "quickstart-pve-2.svg")
	if *update {
		if err := os.WriteFile(path, []byte(picture), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil || string(kept) != picture {
		t.Errorf("%s differs from the map drawn by the program (%v): run go test ./test/e2e -run Readme -update", path, err)
	}
}

// block returns a part of a page that this test generates.
func block(name, language, text string) string {
	return "<!-- " + name + ": kept by test/e2e -->\n```" + language + "\n" + text + "\n```\n<!-- end of " + name + " -->\n"
}

// prefixed puts a prefix before each line.
func prefixed(text, prefix string) string {
	return prefix + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+prefix)
}

var planHash = regexp.MustCompile(` \([0-9a-f]{12}\)|(?m:^Provider .*\n)`)

// hashless removes the plans' hashes, which differ each time, and the provider's hash,
// which depends on the build on this machine.
func hashless(text string) string {
	return strings.TrimRight(planHash.ReplaceAllString(text, ""), "\n")
}
