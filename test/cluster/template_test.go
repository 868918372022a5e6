package cluster_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/pvesim"
)

// The images that the hosts can download.
const (
	oldImage = "https://images.example/old.qcow2"
	newImage = "https://images.example/new.qcow2"
)

// sumOf returns the checksum of an image.
func sumOf(url string) string {
	sum := sha256.Sum256([]byte(url))
	return hex.EncodeToString(sum[:])
}

// newTemplateWorld returns a world whose controller may create templates.
func newTemplateWorld(t *testing.T, config worldConfig) *world {
	t.Helper()
	config.templates = true
	return newWorld(t, config)
}

// mayCreateTemplates adds the images, and the privileges in docs/templates.md.
func mayCreateTemplates(c *pvesim.Config) {
	*c = c.WithToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret)
	c.Images = map[string]pvesim.Image{oldImage: {Data: []byte(oldImage), DiskMiB: 3 << 10}, newImage: {Data: []byte(newImage), DiskMiB: 3 << 10}}
	user, _, _ := strings.Cut(pvesim.DefaultToken, "!")
	c.Roles = append(
		c.Roles,
		pvesim.Role{Name: "TemplatesHost", Privileges: []string{"Sys.AccessNetwork", "Sys.Audit"}},
		pvesim.Role{Name: "TemplatesImage", Privileges: []string{"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit"}},
	)
	for path, role := range map[string]string{"/nodes": "TemplatesHost", "/storage/local": "TemplatesImage"} {
		for _, subject := range []string{user, pvesim.DefaultToken} {
			c.ACL = append(c.ACL, pvesim.ACL{Path: path, Subject: subject, Role: role})
		}
	}
}

// template creates a ProxmoxTemplate.
func (w *world) template(name, url, checksum, more string) {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxTemplate
metadata: {name: %s}
spec:
  image: {url: %q, checksum: %q, storage: local}
  disk: {storage: local-lvm, sizeGiB: 8}
  networks: [{bridge: vmbr0}]
%s`, name, url, checksum, more))
}

// templateUntil waits until a ProxmoxTemplate meets a condition, and returns it.
func (w *world) templateUntil(name string, limit time.Duration, met func(*v1alpha1.ProxmoxTemplate) bool) *v1alpha1.ProxmoxTemplate {
	w.t.Helper()
	pt := &v1alpha1.ProxmoxTemplate{}
	w.eventually(limit, func(ctx context.Context) string {
		pt = &v1alpha1.ProxmoxTemplate{}
		if err := w.api.Get(ctx, client.ObjectKey{Name: name}, pt); err != nil {
			return err.Error()
		}
		if !met(pt) {
			return fmt.Sprintf("ProxmoxTemplate %s: %+v", name, pt.Status)
		}
		return ""
	})
	return pt
}

func templateReady(pt *v1alpha1.ProxmoxTemplate) bool {
	return pt.StatusConditions().Root().IsTrue() && pt.Status.Current != "" && !slices.ContainsFunc(pt.Status.Templates, func(s v1alpha1.TemplateStatus) bool {
		return s.Name == pt.Status.Current && s.State != v1alpha1.TemplateReady
	})
}

// TestTemplateRollout checks that the nodes of two classes are cloned from one
// ProxmoxTemplate, that a new image replaces the nodes within the budget, that the old
// templates are deleted afterwards, and that a ProxmoxTemplate in use is not deleted.
func TestTemplateRollout(t *testing.T) {
	w := newTemplateWorld(t, worldConfig{hosts: largeHosts(t)})
	w.start()
	w.template("debian", oldImage, sumOf(oldImage), "")
	for _, name := range []string{"one", "two"} {
		w.manifest(fmt.Sprintf(`
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: %[1]s}
spec: {template: {ref: debian}, metadata: {type: cdrom}}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: %[1]s}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: Never, budgets: [{nodes: "2"}]}
`, name))
	}
	first := w.templateUntil("debian", 3*time.Minute, templateReady)
	w.deployment("app", 9, "500m", alone("app"), on("karpenter.sh/nodepool", "one"))
	w.deployment("other", 1, "500m", on("karpenter.sh/nodepool", "two"))
	w.comesTo("app", 9, 10, 5*time.Minute)
	w.comesTo("other", 1, 10, time.Minute)

	disrupted := w.disrupted()
	w.patch(&v1alpha1.ProxmoxTemplate{}, "debian", fmt.Sprintf(`{"spec": {"image": {"url": %q, "checksum": %q}}}`, newImage, sumOf(newImage)))
	w.eventually(12*time.Minute, func(ctx context.Context) string {
		var nodes corev1.NodeList
		if err := w.api.List(ctx, &nodes); err != nil {
			return err.Error()
		}
		var old []string
		for i := range nodes.Items {
			if nodes.Items[i].Labels[v1alpha1.LabelTemplate] == first.Status.Current {
				old = append(old, nodes.Items[i].Name)
			}
		}
		if len(old) > 0 || len(nodes.Items) != 10 {
			return fmt.Sprintf("%d nodes, of the old template: %v", len(nodes.Items), old)
		}
		return ""
	})
	if _, most := disrupted.bounds(); most > 4 {
		t.Errorf("up to %d nodes were disrupted at a time, want at most 2 in each of 2 pools", most)
	}
	w.templateUntil("debian", 3*time.Minute, func(pt *v1alpha1.ProxmoxTemplate) bool {
		return templateReady(pt) && pt.Status.Current != first.Status.Current && len(pt.Status.Templates) == 2
	})
	for _, one := range first.Status.Templates {
		if _, exists := w.proxmox.Guest(int(one.VMID)); exists {
			t.Errorf("the old template %d still exists on %s", one.VMID, one.Host)
		}
	}

	if err := w.api.Delete(context.Background(), &v1alpha1.ProxmoxTemplate{ObjectMeta: first.ObjectMeta}); err != nil {
		t.Fatal(err)
	}
	w.templateUntil("debian", time.Minute, func(pt *v1alpha1.ProxmoxTemplate) bool {
		ready := pt.StatusConditions().Root()
		return ready.IsFalse() && strings.Contains(ready.Message, "is used by ")
	})
}

// TestTemplateFaults checks that a wrong checksum, a full storage and a host that is down are
// reported, do not affect other hosts and templates, and end when they are fixed.
func TestTemplateFaults(t *testing.T) {
	w := newTemplateWorld(t, worldConfig{hosts: largeHosts(t)})
	w.proxmox.SetHostOnline("pve-2", false)
	w.start()
	w.template("wrong", oldImage, strings.Repeat("0", 64), "  hosts: [pve-1]\n")
	w.template("right", newImage, sumOf(newImage), "")
	w.classOf("wrong")
	state := func(pt *v1alpha1.ProxmoxTemplate, host string) v1alpha1.TemplateStatus {
		i := slices.IndexFunc(pt.Status.Templates, func(s v1alpha1.TemplateStatus) bool {
			return strings.HasSuffix(s.Host, host) && s.Name == pt.Status.Current
		})
		if i < 0 {
			return v1alpha1.TemplateStatus{}
		}
		return pt.Status.Templates[i]
	}
	w.templateUntil("wrong", 3*time.Minute, func(pt *v1alpha1.ProxmoxTemplate) bool {
		one := state(pt, "pve-1")
		return one.State == v1alpha1.TemplateFailed && strings.Contains(one.Message, "correct spec.image.checksum")
	})
	w.templateUntil("right", 3*time.Minute, func(pt *v1alpha1.ProxmoxTemplate) bool {
		return state(pt, "pve-1").State == v1alpha1.TemplateReady && state(pt, "pve-2").State == v1alpha1.TemplatePending && !pt.StatusConditions().Root().IsTrue()
	})
	w.eventually(2*time.Minute, func(ctx context.Context) string {
		var nc v1alpha1.ProxmoxNodeClass
		if err := w.api.Get(ctx, client.ObjectKey{Name: "wrong"}, &nc); err != nil {
			return err.Error()
		}
		if ready := nc.StatusConditions().Root(); !ready.IsFalse() || !strings.Contains(ready.Message, "correct spec.image.checksum") {
			return "the class does not report the template: " + ready.Message
		}
		return ""
	})

	// The host is back, and its storage is full.
	remove := w.proxmox.AddFault(pvesim.Fault{Method: "POST", Path: `/nodes/pve-2/storage/local/download-url$`, TaskExit: "unable to store 'local:import/x.qcow2': No space left on device"})
	w.proxmox.SetHostOnline("pve-2", true)
	w.templateUntil("right", 3*time.Minute, func(pt *v1alpha1.ProxmoxTemplate) bool {
		one := state(pt, "pve-2")
		return one.State == v1alpha1.TemplateFailed && strings.Contains(one.Message, "a storage is full")
	})
	remove()
	w.templateUntil("right", 5*time.Minute, templateReady)
	w.patch(&v1alpha1.ProxmoxTemplate{}, "wrong", fmt.Sprintf(`{"spec": {"image": {"checksum": %q}}}`, sumOf(oldImage)))
	w.templateUntil("wrong", 3*time.Minute, templateReady)

	for _, name := range []string{"wrong", "right"} {
		pt := &v1alpha1.ProxmoxTemplate{}
		pt.Name = name
		if err := w.api.Delete(context.Background(), pt); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually(3*time.Minute, func(ctx context.Context) string {
		var list v1alpha1.ProxmoxTemplateList
		if err := w.api.List(ctx, &list); err != nil || len(list.Items) > 0 {
			return fmt.Sprintf("%d ProxmoxTemplates remain (%v)", len(list.Items), err)
		}
		return ""
	})
	for _, guest := range w.proxmox.Guests() {
		if guest.VMID >= 9100 && guest.VMID <= 9199 {
			t.Errorf("template %d still exists", guest.VMID)
		}
	}
}

// classOf creates a class that refers to a ProxmoxTemplate with the same name.
func (w *world) classOf(name string) {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: %[1]s}
spec: {template: {ref: %[1]s}, metadata: {type: cdrom}}
`, name))
}
