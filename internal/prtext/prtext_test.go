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
		Summary: fmt.Sprintf("%d to create", n), Cost: "+0.12 EUR/h (about +87.60 EUR/month): +4 vCPUs, +8 GiB memory", PlanHash: hash,
		Reasons: []string{text(1)}, Verdict: v1alpha1.ScalePlanVerdict{Decision: v1alpha1.VerdictNeedsApproval},
	}}
	var diff strings.Builder
	for host := range min(n, 8) {
		p.Spec.Hosts = append(p.Spec.Hosts, v1alpha1.ScalePlanHost{Host: fmt.Sprintf("r/pve-%d", host)})
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
				title, body := prtext.Of(p, "proposals/web-up-c0ffee.diff", "", nil)
				check(t, title, body, n)
				t.Logf("%d bytes", len(body))
				if !strings.Contains(body, fmt.Sprintf("**total:** %d VM", n)) || !strings.Contains(body, fmt.Sprintf("%d created", n)) {
					t.Errorf("no totals in %.300s", body)
				}
				if n == 1000 && !strings.Contains(body, "more VMs, listed in the file") {
					t.Error("the text does not say that VMs are missing")
				}
				p.Spec.Summary = text(2)
				title, body = prtext.Of(p, "proposals/"+text(3), text(4), []prtext.Picture{{Host: text(5), Content: "https://git.example/" + text(6), Page: "https://git.example/" + text(6)}})
				check(t, title, body, n)
			})
		}
	}
}

// pictures returns the pictures of the first hosts of a plan.
func pictures(n int) []prtext.Picture {
	list := make([]prtext.Picture, n)
	for i := range list {
		host := fmt.Sprintf("r/pve-%d", i)
		at := fmt.Sprintf("acme/fleet/%%s/c0ffee/proposals/web-up-c0ffee.r.pve-%d.svg", i)
		list[i] = prtext.Picture{Host: host, Content: "https://git.example/" + fmt.Sprintf(at, "raw"), Page: "https://git.example/" + fmt.Sprintf(at, "blob")}
	}
	return list
}

// placement is a reason of the planner.
func placement(i int) string {
	return fmt.Sprintf("fits in NUMA node %d: 4 whole cores of one L3 cache, memory from the same node; leaves %d CPUs, 12 GiB", i%4, 32-i%8*4)
}

// ordinary returns a plan that creates n VMs, with the content of ordinary plans.
func ordinary(n int) *v1alpha1.ScalePlan {
	p := plan(n, placement)
	p.Spec.Why = fmt.Sprintf("%d pods need new nodes", 2*n)
	if n == 1 {
		p.Spec.Why = "2 pods need a new node"
	}
	p.Spec.Reasons = []string{fmt.Sprintf("limit: %d VMs are created in one change, and limits.per_change allows 0 without approval", n)}
	for i := range p.Spec.VMs {
		vm := &p.Spec.VMs[i]
		vm.Reason, vm.Pods = placement(i), []string{fmt.Sprintf("shop/web-%d", i), fmt.Sprintf("shop/cart-%d", i)}
		if i%5 == 4 {
			vm.InstanceType = "c1.16VCPU-32GB"
		}
	}
	return p
}

// TestGolden shows texts as people see them: for few and many VMs, for a removal, and for a
// mixture of changes.
func TestGolden(t *testing.T) {
	mixed := ordinary(2)
	mixed.Spec.Why, mixed.Spec.RequestedBy, mixed.Spec.Direction = "underutilized nodes can be removed", "disruption/underutilized", v1alpha1.ScaleDown
	mixed.Spec.Reasons = []string{"scale-down of NodePool web is manual"}
	mixed.Spec.Summary, mixed.Spec.Cost = "1 to create, 2 to delete on r/pve-0, r/pve-1", "-0.08 EUR/h (about -58.40 EUR/month): -4 vCPUs, -8 GiB memory"
	mixed.Spec.VMs = []v1alpha1.ScalePlanVM{
		{Action: v1alpha1.ScalePlanDelete, Name: "web-2001", Host: "r/pve-0", NodePool: "web", InstanceType: "c1.4VCPU-8GB", Reason: "underutilized", Pods: []string{"shop/web-1", "shop/web-2", "and 7 more"}},
		{Action: v1alpha1.ScalePlanDelete, Name: "web-2002", Host: "r/pve-1", NodePool: "web", InstanceType: "c1.4VCPU-8GB", Reason: "underutilized"},
		{Action: v1alpha1.ScalePlanCreate, NodePool: "web", InstanceType: "c1.4VCPU-8GB", Reason: "replaces removed nodes; its placement is decided when it is created"},
	}
	wake := ordinary(1)
	wake.Spec.VMs[0].Action, wake.Spec.VMs[0].Name, wake.Spec.Cost, wake.Spec.Why = v1alpha1.ScalePlanWake, "web-2001", "", "pods need these standby VMs"
	local := ordinary(5) // on the command line
	local.Name, local.Spec.DiffSHA256 = "", ""
	three := plan(3, func(i int) string { return fmt.Sprintf("pod-%d needs 4 CPUs", i) })
	for name, c := range map[string]struct {
		plan     *v1alpha1.ScalePlan
		note     string
		pictures int
	}{
		"three": {three, "The plan after the merge was different: this is the new one.", 3},
		"one":   {ordinary(1), "", 1},
		"five":  {local, "", 0},
		"fifty": {ordinary(50), "", 6},
		"mixed": {mixed, "", 2},
		"wake":  {wake, "", 0},
	} {
		file := "proposals/web-up-c0ffee.diff"
		if c.plan.Name == "" {
			file = ""
		}
		title, body := prtext.Of(c.plan, file, c.note, pictures(c.pictures))
		got := title + "\n\n" + body
		path := filepath.Join("testdata", name+".md")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestAnyContent checks texts with random content.
func TestAnyContent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom(append([]string{"`", "``````", "\n", "\n\n", "  ", "~~~", "<", "@a", "# Host r/x\n", "é", "\xff"}, hostile[:7]...)), 1, 12)
		n := rapid.IntRange(1, 40).Draw(t, "n")
		texts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string { return strings.Join(parts.Draw(t, "parts"), "") }), 8, 8).Draw(t, "texts")
		p := plan(n, func(i int) string { return texts[i%len(texts)] })
		title, body := prtext.Of(p, "proposals/x.diff", texts[5], nil)
		check(t, title, body, n)
	})
}
