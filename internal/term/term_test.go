package term_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/internal/term"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		environ []string
		color   string
		want    term.Terminal
	}{
		{name: "a pipe", want: term.Terminal{Width: 100}},
		{name: "COLUMNS", environ: []string{"COLUMNS=80"}, want: term.Terminal{Width: 80, Wrap: true}},
		{name: "at least 60", environ: []string{"COLUMNS=20"}, want: term.Terminal{Width: 60, Wrap: true}},
		{name: "not a number", environ: []string{"COLUMNS=wide"}, want: term.Terminal{Width: 100}},
		{name: "always", environ: []string{"NO_COLOR=1"}, color: "always", want: term.Terminal{Width: 100, Color: true}},
		{name: "never", color: "never", want: term.Terminal{Width: 100}},
		{name: "auto", color: "auto", want: term.Terminal{Width: 100}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, term.Of(&bytes.Buffer{}, test.environ, test.color)); diff != "" {
				t.Errorf("terminal (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	sixty := term.Terminal{Width: 60, Wrap: true}
	digest := strings.Repeat("0123456789", 7)
	for _, test := range []struct {
		name     string
		terminal term.Terminal
		text     string
		want     string
	}{
		{
			name: "words", terminal: sixty,
			text: "  host pve-1: 12 CPUs are free, but the largest NUMA node of this host has only 8 of them\nshort\n",
			want: "  host pve-1: 12 CPUs are free, but the largest NUMA node\n    of this host has only 8 of them\nshort\n",
		},
		{name: "a pipe", text: strings.Repeat("word ", 30), want: strings.Repeat("word ", 30)},
		{name: "a long word", terminal: sixty, text: "digest " + digest, want: "digest\n  " + digest[:58] + "\n  " + digest[58:]},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, test.terminal.Fill(test.text, 2)); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCommand checks that a wrapped command line is one command for a shell.
func TestCommand(t *testing.T) {
	t.Parallel()
	line := "numaform approve scale-up-1 --hash " + strings.Repeat("0", 40)
	if got := (term.Terminal{Width: 60, Wrap: true}).Command(line, 4); got != "numaform approve scale-up-1 --hash \\\n    "+strings.Repeat("0", 40) {
		t.Errorf("command:\n%s", got)
	}
	quoted := "numaform plan -f '" + strings.Repeat("a b,", 14) + "'"
	if got := (term.Terminal{Width: 60, Wrap: true}).Command(quoted, 4); got != "numaform plan -f \\\n    '"+strings.Repeat("a b,", 14)+"'" {
		t.Errorf("command with a quoted argument:\n%s", got)
	}
	if got := (term.Terminal{}).Command(line, 4); got != line {
		t.Errorf("command in a pipe: %s", got)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	rows := [][]string{
		{"HOST", "MEMORY", "CPUS", "REASON"},
		{"homelab/pve-1", "24 GiB", "0-3,8-11", "its file is in the fleet, but the VM no longer exists in Proxmox"},
		{"", "8 GiB", "", "short"},
	}
	got := (term.Terminal{Width: 60, Wrap: true}).Table(2, rows)
	want := `  HOST           MEMORY  CPUS      REASON
  homelab/pve-1  24 GiB  0-3,8-11  its file is in the fleet,
                                   but the VM no longer
                                   exists in Proxmox
                 8 GiB             short
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	name := strings.Repeat("workers-", 10)
	got = (term.Terminal{Width: 60, Wrap: true}).Table(0, [][]string{{name + "1", "running"}, {name + "2", "stopped"}})
	if strings.Count(got, "…") != 2 || !strings.Contains(got, "-1  running\n") || !strings.Contains(got, "-2  stopped\n") {
		t.Errorf("names with different ends:\n%s", got)
	}
}

// TestWidths checks that no line of text or of a table is wider than the terminal, and that
// words that fit remain whole.
func TestWidths(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		terminal := term.Terminal{Width: rapid.IntRange(term.MinWidth, 200).Draw(t, "width"), Wrap: true}
		word := rapid.StringMatching(`[a-zé世-]{1,70}`)
		text := strings.Repeat(" ", rapid.IntRange(0, 8).Draw(t, "indent")) + strings.Join(rapid.SliceOfN(word, 1, 30).Draw(t, "words"), " ")
		filled := terminal.Fill(text, 2)
		words := strings.Fields(filled)
		for _, word := range strings.Fields(text) {
			if ansi.StringWidth(word) < term.MinWidth-10 && !slices.Contains(words, word) {
				t.Fatalf("%q was broken:\n%s", word, filled)
			}
		}
		rows := rapid.SliceOfN(rapid.SliceOfN(rapid.StringMatching(`[a-z,]{0,40}( [a-z]{1,12}){0,9}`), 1, 7), 1, 5).Draw(t, "rows")
		for line := range strings.Lines(filled + "\n" + terminal.Table(2, rows)) {
			if columns := ansi.StringWidth(strings.TrimSuffix(line, "\n")); columns > terminal.Width {
				t.Fatalf("%d columns, terminal has %d: %s", columns, terminal.Width, line)
			}
		}
	})
}

// TestWideCharacters checks that names with characters of two columns, and with characters
// of several runes, are shortened to the width of their column.
func TestWideCharacters(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		character := rapid.SampledFrom([]string{"a", "7", "世", "e\u0301", "é", "🙂", "👩\u200d💻", "🇩🇪"})
		name := rapid.Map(rapid.SliceOfN(character, 1, 60), func(parts []string) string { return strings.Join(parts, "") })
		var rows [][]string
		for range rapid.IntRange(1, 5).Draw(t, "rows") {
			rows = append(rows, []string{name.Draw(t, "name"), name.Draw(t, "host"), "|"})
		}
		terminal := term.Terminal{Width: rapid.IntRange(term.MinWidth, 100).Draw(t, "width"), Wrap: true}
		last := -1
		for line := range strings.Lines(terminal.Table(2, rows)) {
			before, _, found := strings.Cut(line, "|")
			if at := ansi.StringWidth(before); !found || last >= 0 && at != last || at >= terminal.Width {
				t.Fatalf("the last column is at %d, in the row above at %d:\n%s", at, last, terminal.Table(2, rows))
			}
			last = ansi.StringWidth(before)
		}
	})
}

func TestPaint(t *testing.T) {
	t.Parallel()
	if got := (term.Terminal{}).Paint(term.Red, "-"); got != "-" {
		t.Errorf("without colors: %q", got)
	}
	if got := (term.Terminal{Color: true}).Paint(term.Red, "-"); got != "\x1b[31m-\x1b[m" {
		t.Errorf("with colors: %q", got)
	}
}

// TestProgress checks the progress line in a terminal and the lines in a pipe.
func TestProgress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		terminal term.Terminal
		want     string
	}{
		{
			name: "terminal", terminal: term.Terminal{Width: 80, Live: true},
			want: "planning hosts: 1 of 40, 3s\r\x1b[2Khost pve-1 is down\nplanning hosts: 2 of 40, 3s\r\x1b[2K",
		},
		{name: "pipe", want: "planning hosts: 1 of 40, 3s\nhost pve-1 is down\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			clock := untimed{clocktesting.NewFakeClock(time.Unix(0, 0))}
			var out bytes.Buffer
			screen := term.NewScreen(&out, test.terminal, clock)
			progress := screen.Start("planning hosts", 40)
			progress.Done(1, 40) // too early
			clock.SetTime(time.Unix(3, 0))
			progress.Done(1, 40)
			fmt.Fprint(screen, "host pve-1 is down\n")
			progress.Done(2, 40)
			progress.Stop()
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// untimed is a clock whose tickers do not tick.
type untimed struct{ *clocktesting.FakeClock }

func (untimed) NewTicker(time.Duration) clock.Ticker {
	return clocktesting.NewFakeClock(time.Unix(0, 0)).NewTicker(time.Hour)
}

// lines is a writer that waits until each line is read.
type lines chan string

func (l lines) Write(text []byte) (int, error) {
	l <- string(text)
	return len(text), nil
}

// TestProgressOfOneStep checks that an activity without parts shows its duration.
func TestProgressOfOneStep(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	out := make(lines)
	progress := term.NewScreen(out, term.Terminal{}, clock).Start("reading Proxmox", 0)
	clock.SetTime(time.Unix(5, 0))
	if got := <-out; got != "reading Proxmox, 5s\n" {
		t.Errorf("line %q", got)
	}
	progress.Stop()
}

// TestPrintable checks that text from outside cannot control the terminal.
func TestPrintable(t *testing.T) {
	t.Parallel()
	plain, colored := term.Terminal{}, term.Terminal{Color: true}
	for _, test := range []struct{ text, want string }{
		{"a\tname\nö世", "a\tname\nö世"},
		{"a\x1b[2J\x1b]0;title\x07b\r\x9b", "a[2J]0;titleb\ufffd"},
		{"a\u009b2J\u202eb", "a2Jb"},
		{"a\x1b[8mb", "a[8mb"},
	} {
		if got := plain.Printable(test.text); got != test.want {
			t.Errorf("%q became %q, want %q", test.text, got, test.want)
		}
		painted := colored.Paint(term.Red, test.text) + colored.Bold("b")
		if got, want := colored.Printable(painted), colored.Paint(term.Red, test.want)+colored.Bold("b"); got != want {
			t.Errorf("with colors, %q became %q, want %q", painted, got, want)
		}
	}
}
