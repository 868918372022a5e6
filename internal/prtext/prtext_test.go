package prtext_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/prtext"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const hash = "c0ffee0123456789c0ffee0123456789c0ffee0123456789c0ffee0123456789"

// hostile is what a user of the cluster may write into the name or the annotations of a pod,
// or into a host's or a NodePool's name.
var hostile = []string{
	"x\n**digest:** `ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff`\n",
	"x\r\n\r\n**total:** 0 VMs",
	"``` \n</details>\n@everyone please /approve\n/merge\n/close",
	"`````````````````````````````` @octocat #1 !1 GH-1 Closes #2",
	"<img src=x onerror=alert(1)><script>alert(1)</script><!--",
	"[approve here](https://evil.example) | a | b |\n|---|---|",
	"\u202e\u200b\u2066reversed\x1b[2J\x00\xff\xfe",
	strings.Repeat("z\u0301\u0301\u0301", 500),
	"\u2028\u2029\u0085# Host r/pve-99\n",
	"x\n```\n</details>\n@everyone\n  ```\n",
}

// plan returns a plan that creates n VMs on 8 hosts, with a text from the cluster at every
// place where there can be one.
func plan(n int, text func(i int) string) *v1alpha1.ScalePlan {
	p := &v1alpha1.ScalePlan{ObjectMeta: metav1.ObjectMeta{Name: "web-up-c0ffee"}, Spec: v1alpha1.ScalePlanSpec{
		Direction: v1alpha1.ScaleUp, NodePools: []string{"web"}, RequestedBy: "provisioning", Why: text(0),
		Summary: fmt.Sprintf("create %d VMs", n), Cost: "0.12 per hour", PlanHash: hash,
		Reasons: []string{text(1)}, Verdict: v1alpha1.ScalePlanVerdict{Decision: v1alpha1.VerdictNeedsApproval},
	}}
	var diff strings.Builder
	for host := range min(n, 8) {
		fmt.Fprintf(&diff, "# Host r/pve-%d\nneeds approval\n\n", host)
		for i := host; i < n; i += 8 {
			fmt.Fprintf(&diff, "  # module.web-%d will be created\n  + resource \"vm\" {\n      + description = %s\n    }\n", i, text(i))
			p.Spec.VMs = append(p.Spec.VMs, v1alpha1.ScalePlanVM{
				Action: v1alpha1.ScalePlanCreate, Host: fmt.Sprintf("r/pve-%d", host), NodePool: "web", InstanceType: "c1.4VCPU-8GB",
				Reason: "CPUs 0-3, NUMA node 0: " + text(i), Pods: []string{"shop/" + text(i), fmt.Sprintf("shop/web-%d", i)},
			})
		}
		diff.WriteString("\n")
	}
	p.Spec.Diff, p.Spec.DiffSHA256 = v1alpha1.CutDiff(diff.String())
	return p
}

// check fails if a text is too long, lacks the digest or the totals, or has a line or a block
// that its content has forged.
func check(t interface {
	Helper()
	Errorf(string, ...any)
}, title, body string, n int,
) {
	t.Helper()
	if len(body) > prtext.Max || utf8.RuneCountInString(title) > 255 || !utf8.ValidString(body) || !utf8.ValidString(title) {
		t.Errorf("the text has %d bytes, the title %d characters, or they are not valid UTF-8", len(body), utf8.RuneCountInString(title))
	}
	if strings.ContainsAny(title, "@#!`<>\n") || !strings.HasPrefix(title, "numaform: ") {
		t.Errorf("title %q", title)
	}
	if at := strings.IndexFunc(body, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); at >= 0 {
		t.Errorf("the text has the character %q", body[at:at+4])
	}
	outside := outsideCode(t, body)
	if got := regexp.MustCompile(`(?m)^\*\*digest:\*\*`).FindAllString(outside, -1); len(got) != 1 || !strings.Contains(body, "\n**digest:** `"+hash+"`\n") && !strings.HasPrefix(body, "**digest:** `"+hash+"`\n") {
		t.Errorf("%d lines with a digest", len(got))
	}
	total := fmt.Sprintf("**total:** %d VM", n)
	if strings.Count(outside, "**total:**") != 1 || !strings.Contains(outside, total) {
		t.Errorf("the text has not exactly one line with the totals %q", total)
	}
	// Outside code there are only numaform's words.
	for _, bad := range []string{"@", "evil", "/approve", "/merge", "<img", "<script", "<!--", "](", "|", "#1", "\u202e", "\x1b", "\x00"} {
		if strings.Contains(outside, bad) {
			t.Errorf("%q is outside code", bad)
		}
	}
	if opened, closed := strings.Count(outside, "<details>"), strings.Count(outside, "</details>"); opened != closed {
		t.Errorf("%d blocks are folded, %d are closed", opened, closed)
	}
}

// outsideCode returns a Markdown text without its code blocks and code spans, as CommonMark
// defines them.
func outsideCode(t interface {
	Helper()
	Errorf(string, ...any)
}, body string,
) string {
	t.Helper()
	var rest strings.Builder
	fence := ""
	for line := range strings.SplitSeq(body, "\n") {
		if inner := strings.TrimLeft(line, " "); len(line)-len(inner) <= 3 {
			line = inner // a fence can be indented by up to three spaces
		}
		run := line[:len(line)-len(strings.TrimLeft(line, "`"))]
		switch {
		case fence == "" && len(run) >= 3:
			fence = run
		case fence != "" && len(run) >= len(fence) && strings.TrimSpace(line[len(run):]) == "":
			fence = ""
		case fence == "":
			rest.WriteString(regexp.MustCompile("`[^`]*`").ReplaceAllString(line, "CODE") + "\n")
		}
	}
	if fence != "" {
		t.Errorf("a block of code is not closed")
	}
	if strings.Contains(rest.String(), "`") {
		t.Errorf("a quoted text is not closed")
	}
	return rest.String()
}

// TestOf writes texts for 1 to 1,000 VMs, with ordinary and with hostile content.
func TestOf(t *testing.T) {
	for _, n := range []int{1, 20, 200, 1000} {
		for name, text := range map[string]func(int) string{
			"ordinary": func(i int) string { return fmt.Sprintf("pod-%d does not fit on any node", i) },
			"hostile":  func(i int) string { return hostile[i%len(hostile)] },
			"all":      func(int) string { return strings.Join(hostile, " ") },
		} {
			t.Run(fmt.Sprintf("%d/%s", n, name), func(t *testing.T) {
				p := plan(n, text)
				title, body := prtext.Of(p, "proposals/web-up-c0ffee.diff", "")
				check(t, title, body, n)
				t.Logf("%d bytes", len(body))
				if !strings.Contains(body, fmt.Sprintf("**total:** %d VM", n)) || !strings.Contains(body, fmt.Sprintf("%d created", n)) {
					t.Errorf("no totals in %.300s", body)
				}
				if n == 1000 && !strings.Contains(body, "more VMs, listed in the file") {
					t.Error("the text does not say that VMs are missing")
				}
				p.Spec.Summary = text(2)
				title, body = prtext.Of(p, "proposals/"+text(3), text(4))
				check(t, title, body, n)
			})
		}
	}
}

// TestGolden shows a text as people see it.
func TestGolden(t *testing.T) {
	p := plan(3, func(i int) string { return fmt.Sprintf("pod-%d needs 4 CPUs", i) })
	title, body := prtext.Of(p, "proposals/web-up-c0ffee.diff", "The plan after the merge was different: this is the new one.")
	got := title + "\n\n" + body
	name := filepath.Join("testdata", "three.md")
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAnyContent checks texts with random content.
func TestAnyContent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom(append([]string{"`", "``````", "\n", "\n\n", "  ", "~~~", "<", "@a", "# Host r/x\n", "é", "\xff"}, hostile[:7]...)), 1, 12)
		n := rapid.IntRange(1, 40).Draw(t, "n")
		texts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string { return strings.Join(parts.Draw(t, "parts"), "") }), 8, 8).Draw(t, "texts")
		p := plan(n, func(i int) string { return texts[i%len(texts)] })
		title, body := prtext.Of(p, "proposals/x.diff", texts[5])
		check(t, title, body, n)
	})
}
