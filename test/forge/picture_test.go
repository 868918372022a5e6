package forge_test

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/prtext"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// The flags for a screenshot of a pull request, for example docs/pull-request.png:
//
//	go test ./test/forge -run TestGitea/picture -screenshot FILE -public GITEA/public
//
// Gitea's front end is built in a copy of its module with pnpm install and pnpm exec vite
// build. The browser is chromium.
var (
	screenshot = flag.String("screenshot", "", "write a screenshot of a pull request to this file")
	public     = flag.String("public", "", "directory public of a Gitea with its front end")
)

// testGiteaPicture opens a pull request with pictures in a private repository. A user of the
// repository gets them as images, and other users do not get them.
func testGiteaPicture(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "picture")
	git, err := store.NewGit(store.GitConfig{Clone: t.TempDir(), Remote: v.URL + "/ops/picture.git", Auth: store.GitAuth{Username: "bot", Token: v.bot}})
	if err != nil {
		t.Fatal(err)
	}
	plan, images := burst(t)
	file := "proposals/" + plan.Name + ".diff"
	branch := "numaform/prod/" + plan.Name
	proposal := store.Proposal{
		Branch: branch, Name: plan.Name, Content: []byte(plan.Spec.Diff), Pictures: map[string][]byte{},
		Message: "numaform: propose " + plan.Name + "\n", Time: time.Unix(1767225600, 0),
	}
	for host, image := range images {
		proposal.Pictures[strings.ReplaceAll(host, "/", ".")] = image
	}
	head, err := git.Propose(ctx, proposal)
	if err != nil {
		t.Fatal(err)
	}
	title, body := prtext.Of(plan, file, "", nil)
	opened, err := client.Create(ctx, forge.NewPullRequest{Head: branch, Title: title, Body: body, Labels: []string{"numaform"}, Reviewers: []string{"ann"}})
	if err != nil {
		t.Fatal(err)
	}
	var shown []prtext.Picture
	for _, host := range plan.Spec.Hosts {
		content, page := forge.FileURLs(forge.Gitea, &opened, head, git.PicturePath(plan.Name, strings.ReplaceAll(host.Host, "/", ".")))
		shown = append(shown, prtext.Picture{Host: host.Host, Content: content, Page: page})
	}
	title, body = prtext.Of(plan, file, "", shown)
	if err := client.Edit(ctx, opened.Number, title, body); err != nil {
		t.Fatal(err)
	}
	if err := client.SetStatus(ctx, head, forge.Status{Context: "numaform/plan", State: forge.Success, Description: "digest " + plan.Spec.PlanHash}); err != nil {
		t.Fatal(err)
	}
	html := v.render(t, "ops/picture", body)
	for _, picture := range shown {
		if !strings.Contains(html, `<img src="`+picture.Content+`"`) || !strings.Contains(html, `<a href="`+picture.Page+`"`) {
			t.Errorf("no image of %s in\n%s", picture.Host, html)
		}
	}
	if *screenshot != "" {
		v.photograph(t, opened.URL)
	}

	v.call(t, v.owner, http.MethodPatch, "repos/ops/picture", map[string]any{"private": true}, nil)
	for name, c := range map[string]struct {
		token string
		want  int
	}{"ann": {v.reviewer, http.StatusOK}, "mallory": {v.stranger, http.StatusNotFound}} {
		status, kind, content := v.get(t, c.token, shown[0].Content)
		if status != c.want || status == http.StatusOK && (kind != "image/svg+xml" || content != string(images[shown[0].Host])) {
			t.Errorf("%s gets %d, %s, %.100q", name, status, kind, content)
		}
	}
}

// get gets a page of the server.
func (v *village) get(t *testing.T, token, url string) (status int, kind, content string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "token "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it is read
	page, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header.Get("Content-Type"), string(page)
}

// photograph writes a screenshot of a page.
func (v *village) photograph(t *testing.T, url string) {
	t.Helper()
	if *public != "" {
		if err := v.Show(*public); err != nil {
			t.Fatal(err)
		}
	}
	file, err := filepath.Abs(*screenshot)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--user-data-dir="+t.TempDir(),
		"--virtual-time-budget=20000", "--window-size=1280,2400", "--screenshot="+file, url).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// burst returns a plan for 4 VMs on 2 hosts of 8 NUMA nodes, with its pictures.
func burst(t *testing.T) (*v1alpha1.ScalePlan, map[string][]byte) {
	t.Helper()
	machine, err := machines.Load("epyc-7451-2s-8node")
	if err != nil {
		t.Fatal(err)
	}
	for i := range machine.NUMANodes {
		machine.NUMANodes[i].MemoryMiB = 32 << 10
	}
	vm := func(host string, id fleet.VMID, cpus string, node int) fleet.VM {
		set, err := topology.ParseCPUSet(cpus)
		if err != nil {
			t.Fatal(err)
		}
		v := fleet.VM{VMID: id, Name: fleet.NodeName("web", id), Key: fleet.Key(fmt.Sprint(id))}
		v.Pool, v.VCPUs, v.MemoryMiB, v.InstanceType = "web", set.Size(), 16<<10, fmt.Sprintf("d1.%dVCPU-16GB", set.Size())
		v.Host, v.CPUs = topology.HostID{Region: "lab", Host: topology.HostName(host)}, set
		v.Cells = []topology.NUMACell{{GuestCPUs: topology.CPUs(0), HostNodes: topology.CPUs(node), MemoryMiB: 16 << 10, Policy: topology.NUMABind}}
		return v
	}
	existing := []fleet.VM{vm("pve-1", 2001, "1-5,49-53", 0), vm("pve-1", 2002, "6-9,54-57", 1), vm("pve-2", 2003, "1-4,49-52", 0), vm("pve-2", 2004, "18-21,66-69", 3)}
	created := []fleet.VM{vm("pve-1", 2005, "12-15,60-63", 2), vm("pve-1", 2006, "18-21,66-69", 3), vm("pve-2", 2007, "6-9,54-57", 1), vm("pve-2", 2008, "24-27,72-75", 4)}
	plan := &v1alpha1.ScalePlan{ObjectMeta: metav1.ObjectMeta{Name: "web-up-0f3b6c1d9a2e"}, Spec: v1alpha1.ScalePlanSpec{
		Direction: v1alpha1.ScaleUp, NodePools: []string{"web"}, RequestedBy: "provisioning", Why: "6 pods need new nodes",
		Summary: "4 to create on lab/pve-1, lab/pve-2", PlanHash: "0f3b6c1d9a2e" + strings.Repeat("5d1c", 13),
		Cost:    "+0.45 EUR/h (about +327.04 EUR/month): +32 vCPUs, +64 GiB memory, +80 GiB disk",
		Verdict: v1alpha1.ScalePlanVerdict{Decision: v1alpha1.VerdictNeedsApproval},
		Reasons: []string{"limit: 4 VMs are created in one change, and limits.per_change allows 3 without approval"},
	}}
	images := map[string][]byte{}
	var diff strings.Builder
	for _, name := range []topology.HostName{"pve-1", "pve-2"} {
		host := topology.Host{Region: "lab", Name: name, Online: true, Machine: machine, ReservedCPUs: topology.CPUs(0, 48)}
		var changes []cpumap.Change
		fmt.Fprintf(&diff, "# Host %s\nneeds approval: limit\n\n", host.ID())
		for i := range created {
			v := &created[i]
			if v.Host != host.ID() {
				continue
			}
			changes = append(changes, cpumap.Change{Kind: cpumap.Created, VM: *v, Name: v.InstanceType + " for web"})
			fmt.Fprintf(&diff, "  # module.%s.proxmox_virtual_environment_vm.vm will be created\n", v.Name)
			line := v1alpha1.ScalePlanVM{
				Action: v1alpha1.ScalePlanCreate, Host: host.ID().String(), NodePool: "web", InstanceType: v.InstanceType,
				Reason: fmt.Sprintf("fits in NUMA node %s: 4 whole cores of one L3 cache; leaves 4 CPUs, 16 GiB", v.Cells[0].HostNodes),
				Pods:   []string{fmt.Sprintf("shop/web-%d", i)},
			}
			if i%2 == 0 {
				line.Pods = append(line.Pods, fmt.Sprintf("shop/cart-%d", i))
			}
			plan.Spec.VMs = append(plan.Spec.VMs, line)
		}
		plan.Spec.Hosts = append(plan.Spec.Hosts, v1alpha1.ScalePlanHost{Host: host.ID().String()})
		images[host.ID().String()] = cpumap.Compare(&host, existing, changes)
		diff.WriteString("\n")
	}
	plan.Spec.Diff, plan.Spec.DiffSHA256 = v1alpha1.CutDiff(diff.String())
	return plan, images
}
