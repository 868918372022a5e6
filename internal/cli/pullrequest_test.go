package cli_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/forge/forgetest"
)

// TestReplacedPullRequests checks which open pull requests of earlier changes a change
// closes: of apply, the earlier ones of apply; of remove, those about the same VMs. Others,
// forks, the proposals of controllers and the changes of another cluster stay open. While apply
// refuses pods and adds no VM, its own pull requests stay open, too.
func TestReplacedPullRequests(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change *cli.Reviewed
		want   []int
	}{
		"apply":        {cli.ReviewedChange(), []int{1}},
		"refused":      {cli.ReviewedChange().Refusing(), nil},
		"in part":      {cli.ReviewedChange().Refusing("web-d"), []int{1}},
		"remove one":   {cli.ReviewedChange("web-a"), []int{2}},
		"remove two":   {cli.ReviewedChange("web-c", "web-b"), []int{2, 3}},
		"remove other": {cli.ReviewedChange("web"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := forgetest.New("main")
			open(t, f, "numaform/1", cli.ReviewedChange())
			open(t, f, "numaform/2", cli.ReviewedChange("web-a", "web-b"))
			open(t, f, "numaform/3", cli.ReviewedChange("web-c"))
			open(t, f, "numaform/lab/workers-up-1", cli.ReviewedChange()) // of a controller
			open(t, f, "mine", cli.ReviewedChange())
			open(t, f, "numaform/4", cli.ReviewedChangeOf("lab-2"))
			open(t, f, "numaform/5", cli.ReviewedChangeOf("lab-2", "web-a", "web-b", "web-c"))
			fork := f.OpenBy("mallory", "numaform/1", "1111", "fork", true)
			f.Update(fork, func(p *forge.PullRequest) { p.Body = cli.ReviewedChange().Request("").Body })

			var out bytes.Buffer
			if err := test.change.CloseReplaced(t.Context(), cli.Process{Stdout: &out}, f, "because of that"); err != nil {
				t.Fatal(err)
			}
			var closed []int
			for number := 1; number <= fork; number++ {
				found, err := f.Get(t.Context(), number)
				if err != nil {
					t.Fatal(err)
				}
				if found.State == forge.Closed {
					closed = append(closed, number)
					if !slices.Equal(f.Comments(number), []string{"because of that"}) || !strings.Contains(out.String(), found.URL) {
						t.Errorf("#%d has the comments %q; printed %q", number, f.Comments(number), out.String())
					}
				}
			}
			if !slices.Equal(closed, test.want) {
				t.Errorf("closed %v, want %v", closed, test.want)
			}
		})
	}
}

// open opens the pull request of a change.
func open(t *testing.T, f *forgetest.Forge, branch string, change *cli.Reviewed) {
	t.Helper()
	f.Push(branch, strings.Repeat("1", 40))
	if _, err := f.Create(t.Context(), change.Request(branch)); err != nil {
		t.Fatal(err)
	}
}
