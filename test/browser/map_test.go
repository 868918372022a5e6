package browser_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// outside lists the texts that exceed the smallest rectangle at their anchor, by more than half
// a pixel.
const outside = `(() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg")) {
    const boxes = [...svg.querySelectorAll("rect.card, rect.node, rect.sheet, rect.side")].map(r => r.getBoundingClientRect());
    for (const text of svg.querySelectorAll("text")) {
      const at = text.getBoundingClientRect(), y = (at.top + at.bottom) / 2;
      const x = text.classList.contains("end") ? at.right - 1 : at.left + 1;
      const around = boxes.filter(b => b.left <= x && x <= b.right && b.top <= y && y <= b.bottom).sort((a, b) => a.width - b.width)[0];
      if (at.width && (!around || at.left < around.left - 0.5 || at.right > around.right + 0.5))
        found.push(svg.parentNode.id + ": " + text.textContent);
    }
  }
  return found;
})()`

// TestMapsFit checks that texts stay inside the cards of CPU maps, and in the pictures of
// changes, in a wide font: the pictures are drawn without knowing the fonts of the reader.
func TestMapsFit(t *testing.T) {
	t.Parallel()
	var body strings.Builder
	for _, name := range append(machines.Names(), machines.Constructed()...) {
		machine, err := machines.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		host := topology.Host{
			Region: "production-europe", Name: "pve-rack-0017-node-03", Machine: machine, Online: true,
			Warnings: []string{strings.Repeat("its notes cannot be read, so a topology published there is unknown: grant Sys.Audit on /; ", 3)},
		}
		for i := range 24 {
			host.Guests = append(host.Guests, topology.Guest{VMID: 10000 + i, Name: fmt.Sprintf("monitoring-gateway-%02d", i), Kind: topology.GuestVM, Running: true, VCPUs: 10 + i, MemoryMiB: 1 << 10})
		}
		cores := host.Cores()
		vms := make([]fleet.VM, min(14, len(cores)))
		changes := make([]cpumap.Change, len(vms))
		for i := range vms {
			vm := &vms[i]
			vm.VMID, vm.Name, vm.VCPUs, vm.MemoryMiB = fleet.VMID(20000+i), fmt.Sprintf("compute-workers-%d", 20000+i), 2, 64<<10
			vm.Host, vm.CPUs = host.ID(), cores[i].CPUs
			changes[i] = cpumap.Change{Kind: cpumap.Removed, VM: vms[i], Name: vms[i].Name}
		}
		fmt.Fprintf(&body, "<div id=%q>%s</div>", name, cpumap.SVG([]topology.Host{host}, map[topology.HostID]cpumap.Ownership{host.ID(): cpumap.Owners(&host, vms)}))
		fmt.Fprintf(&body, "<div id=\"%s, change\">%s</div>", name, cpumap.Compare(&host, vms, changes))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, `<!DOCTYPE html><style>svg text { font-family: "DejaVu Sans" !important }</style>%s
<script>const r = JSON.stringify(%s); document.body.innerHTML = '<pre id="result"></pre>'; document.querySelector("pre").textContent = r;</script>`, body.String(), outside)
	}))
	t.Cleanup(server.Close)
	var texts []string
	measured(t, &texts, server.URL)
	for _, text := range texts {
		t.Error(text)
	}
}
