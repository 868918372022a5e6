package review

import (
	"context"
	"fmt"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/prtext"
	"github.com/numaform/numaform/internal/store"
)

// statusContext is the name of numaform's commit status.
const statusContext = "numaform/plan"

// maxStatus is the maximum length of a commit status at GitHub.
const maxStatus = 140

// about returns lines that describe a plan, without its diff.
func about(plan *v1alpha1.ScalePlan) []string {
	var lines []string
	line := func(key, value string) {
		if value = strings.Join(strings.Fields(value), " "); value != "" {
			lines = append(lines, key+": "+value)
		}
	}
	line("ScalePlan", plan.Name)
	line("Digest", plan.Spec.PlanHash)
	line("Change", plan.Spec.Summary)
	line("Why", plan.Spec.Why)
	line("Cost", plan.Spec.Cost)
	line("NodePools", strings.Join(plan.Spec.NodePools, ", "))
	line("Guard", string(plan.Spec.Verdict.Decision))
	for _, reason := range plan.Spec.Reasons {
		line("Needs approval", reason)
	}
	for i := range plan.Spec.VMs {
		vm := &plan.Spec.VMs[i]
		line(string(vm.Action), strings.Join([]string{vm.Name, vm.InstanceType, "on", vm.Host, "for", vm.NodePool, vm.Reason}, " "))
		line("  Pods", strings.Join(vm.Pods, ", "))
	}
	line("SHA-256 of the whole diff", plan.Spec.DiffSHA256)
	return lines
}

// proposal returns the file of a plan on its branch, and its pictures. The same plan has the
// same file, so it can be recognized after a merge of any kind; its pictures can differ.
func (r *Reviewer) proposal(plan *v1alpha1.ScalePlan, branch string) store.Proposal {
	var b strings.Builder
	b.WriteString("# numaform proposal 1. DO NOT EDIT: numaform applies only exactly this plan.\n")
	for _, line := range about(plan) {
		b.WriteString("# " + line + "\n")
	}
	b.WriteString("\n" + plan.Spec.Diff)
	pictures := map[string][]byte{}
	for host, content := range r.config.Plans.Pictures(plan.Name) {
		pictures[pictureOf(host)] = content
	}
	return store.Proposal{
		Branch: branch, Name: plan.Name, Content: []byte(b.String()), Pictures: pictures, Time: plan.CreationTimestamp.UTC(),
		Message: fmt.Sprintf("numaform: propose %s\n\n%s\n\nNumaform-ScalePlan: %s\nNumaform-Digest: %s\n",
			plan.Name, plan.Spec.Summary, plan.Name, plan.Spec.PlanHash),
	}
}

// statusOf returns the text of the commit status of a plan.
func statusOf(plan *v1alpha1.ScalePlan) string {
	return clip("digest "+plan.Spec.PlanHash+", "+plan.Spec.Summary, maxStatus)
}

// clip truncates a text to one line of at most most characters.
func clip(text string, most int) string {
	runes := []rune(strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// text returns the title and the text of a plan's pull request. Nothing in them is ever read
// again: they are for people.
func (p *pass) text(ctx context.Context, plan *v1alpha1.ScalePlan, request *forge.PullRequest) (title, body string, err error) {
	pictures, err := p.shown(ctx, plan, request)
	if err != nil {
		return "", "", err
	}
	title, body = prtext.Of(plan, "proposals/"+plan.Name+".diff", plan.Status.PullRequest.Note, pictures)
	return title, body, nil
}
