package cluster_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestObserve checks that observe mode decides and plans for pods, but not on a host that is
// being evacuated, and creates no NodeClaim, VM, ConfigMap, Secret or event.
func TestObserve(t *testing.T) {
	w := newWorld(t, worldConfig{hosts: largeHosts(t), args: []string{"--mode", "observe"}})
	w.classAndPool("workers", "", "")
	w.pods("web", 3, "1", "1Gi", onHost("pve-2"))
	w.pods("stuck", 1, "1", "1Gi", onHost("pve-1"))
	w.numaform("evacuate", "homelab/pve-1")
	w.start()
	w.eventually(2*time.Minute, func(context.Context) string {
		for _, text := range []string{"would create a vm", "planned a host"} {
			if !w.controller.log.contains(text) {
				return "the log does not contain: " + text
			}
		}
		return ""
	})
	if w.controller.log.contains(`"host":"homelab/pve-1"`) || !w.controller.log.contains("homelab/pve-1 is temporarily unavailable") {
		t.Error("a VM was planned on a host that is being evacuated")
	}
	w.untouched()
	var maps corev1.ConfigMapList
	var secrets corev1.SecretList
	var events corev1.EventList
	for _, list := range []client.ObjectList{&maps, &secrets} {
		if err := w.api.List(context.Background(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.api.List(context.Background(), &events); err != nil {
		t.Fatal(err)
	}
	for i := range maps.Items {
		if maps.Items[i].Name != "kube-root-ca.crt" && maps.Items[i].Labels["app.kubernetes.io/managed-by"] != "Helm" {
			t.Errorf("ConfigMap %s was written", maps.Items[i].Name)
		}
	}
	for i := range secrets.Items {
		if secrets.Items[i].Labels["app.kubernetes.io/managed-by"] != "Helm" {
			t.Errorf("Secret %s was written", secrets.Items[i].Name)
		}
	}
	for i := range events.Items {
		if events.Items[i].Source.Component == "numaform" && events.Items[i].InvolvedObject.Kind != "Lease" {
			t.Errorf("event %s of %s was written: %s", events.Items[i].Reason, events.Items[i].InvolvedObject.Name, events.Items[i].Message)
		}
	}
}
