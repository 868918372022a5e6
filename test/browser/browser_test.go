// Package browser_test tests the web page in a real Chromium: the login, accessibility by axe-core,
// narrow screens, and a browser without JavaScript.
package browser_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/page"
	"github.com/numaform/numaform/internal/page/pagetest"
	"github.com/numaform/numaform/internal/redact"
)

// screenshots is the directory for images of the pages.
var screenshots = flag.String("screenshots", "", "write screenshots of all pages to this directory, which must exist")

// browser returns the program that tools/system.sh finds.
func browser(t *testing.T) string {
	t.Helper()
	enginetest.Needs(t, "chromium")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no Chromium: run make chromium")
	return ""
}

// axe returns axe-core.
func axe(t *testing.T) []byte {
	t.Helper()
	enginetest.Needs(t, "chromium")
	found, err := filepath.Glob("../../.tools/axe/axe-*.min.js")
	if err != nil || len(found) == 0 {
		t.Fatal("no axe-core: run make chromium")
	}
	text, err := os.ReadFile(found[len(found)-1])
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// run runs Chromium without a window and returns its output and its log.
func run(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	profile := t.TempDir()
	args = append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--hide-scrollbars",
		"--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--user-data-dir=" + profile,
	}, args...)
	command := exec.CommandContext(t.Context(), browser(t), args...)
	command.Env = append(os.Environ(), "HOME="+profile)
	var out, log bytes.Buffer
	command.Stdout, command.Stderr = &out, &log
	if err := command.Run(); err != nil {
		t.Fatalf("%v:\n%s", err, log.String())
	}
	return out.String(), log.String()
}

// Settings of Chromium.
const (
	light = "--blink-settings=preferredColorScheme=1"
	dark  = "--blink-settings=preferredColorScheme=0"
)

// serve serves the page of a fleet as the controller does, and returns its address.
func serve(t *testing.T, f *pagetest.Fleet) *httptest.Server {
	t.Helper()
	p := page.New(page.Config{
		Read: func(context.Context) *page.Data { return f.Data() }, Plan: f.Plan,
		Access: page.NewAccess(pagetest.NewAPI(), clock.RealClock{}), Redact: redact.New(nil).Text, Version: "1.4.0", Clock: clock.RealClock{},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	server := httptest.NewServer(p.Handler())
	t.Cleanup(func() { server.Close(); cancel(); <-done })
	return server
}

// login returns a URL with which a browser logs in.
func login(server *httptest.Server, path string) string {
	return strings.Replace(server.URL, "http://", "http://reader:"+pagetest.Reader+"@", 1) + page.Root + path
}

// views are the pages by name.
func views(f *pagetest.Fleet) map[string]string {
	return map[string]string{
		"overview": "", "vms": "vms", "vms-filtered": "vms?q=none&state=running", "hosts": "hosts",
		"host": "host?id=" + url.QueryEscape(f.Snapshot.Hosts[0].ID().String()), "host-offline": "host?id=" + url.QueryEscape(f.Snapshot.Hosts[4].ID().String()),
		"plans": "plans", "plan": "plan?name=workers-up-3f2a", "history": "history",
		"change": "change?id=" + f.History[9].Change.ID, "missing": "plan?name=none",
	}
}

// TestLogin checks that a browser's own login suffices for the page and everything on it, that
// nothing violates the policies of the responses, and that a browser without a token sees
// nothing.
func TestLogin(t *testing.T) {
	t.Parallel()
	f := pagetest.New(5, 300)
	server := serve(t, f)
	for name, path := range views(f) {
		dom, log := run(t, "--dump-dom", login(server, path))
		if want := map[bool]string{true: "does not exist", false: `<nav aria-label="Pages">`}[name == "missing"]; !strings.Contains(dom, want) {
			t.Errorf("%s lacks %q:\n%s", name, want, dom)
		}
		for line := range strings.Lines(log) {
			// Chromium logs violations and failed resources of a page as messages of its console. The
			// status of the page itself is one of them, too.
			if strings.Contains(line, "CONSOLE") && name != "missing" {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	dom, _ := run(t, "--dump-dom", server.URL+page.Root) // some versions show nothing at all
	if strings.Contains(dom, "<nav") || strings.Contains(dom, "workers") || strings.Contains(dom, "pve0") {
		t.Errorf("without a token, the browser shows\n%s", dom)
	}
}

// lab serves the pages of a server with scripts that measure them, which the page's own policy
// would not allow. report is a JavaScript expression for a promise of the result.
func lab(t *testing.T, server *httptest.Server, report string) *httptest.Server {
	t.Helper()
	library := axe(t)
	inner := server.Config.Handler
	outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/axe.js":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write(library)
			return
		case "/narrow":
			fmt.Fprintf(w, `<!DOCTYPE html><html lang="en"><title>narrow</title><iframe width="360" height="740" src="%s" %s></iframe>`,
				html.EscapeString(r.URL.Query().Get("of")), r.URL.Query().Get("with"))
			return
		}
		r.Header.Set("Authorization", "Bearer "+pagetest.Reader)
		recorded := httptest.NewRecorder()
		inner.ServeHTTP(recorded, r)
		body := recorded.Body.String()
		w.Header().Set("Content-Type", recorded.Header().Get("Content-Type"))
		if report != "" && strings.HasPrefix(recorded.Header().Get("Content-Type"), "text/html") {
			body = strings.Replace(body, "</body>", `<script src="/axe.js"></script><script>
addEventListener("load", () => setTimeout(async () => {
  let result;
  try { result = JSON.stringify(await (`+report+`)); } catch (e) { result = JSON.stringify([String(e)]); }
  const out = document.createElement("pre");
  out.id = "result"; out.textContent = result;
  (parent === window ? document : parent.document).body.append(out);
}));</script></body>`, 1)
		}
		w.WriteHeader(recorded.Code)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(outer.Close)
	return outer
}

var result = regexp.MustCompile(`(?s)<pre id="result">(.*?)</pre>`)

// measured returns the result of the lab's report about a page.
func measured(t *testing.T, into any, args ...string) {
	t.Helper()
	dom, log := run(t, append([]string{"--virtual-time-budget=30000", "--dump-dom"}, args...)...)
	found := result.FindStringSubmatch(dom)
	if found == nil {
		t.Fatalf("no result:\n%s\n%s", dom, log)
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(found[1])), into); err != nil {
		t.Fatalf("%v: %s", err, found[1])
	}
}

// TestAccessible checks each page with all rules of axe-core, in light and in dark.
func TestAccessible(t *testing.T) {
	t.Parallel()
	f := pagetest.New(5, 300)
	f.Paused = true
	server := lab(t, serve(t, f), `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html + " " + n.failureSummary).join("; ")))`)
	for name, path := range views(f) {
		for _, scheme := range []string{light, dark} {
			var violations []string
			measured(t, &violations, scheme, server.URL+page.Root+path)
			for _, violation := range violations {
				t.Errorf("%s, %s: %s", name, scheme, violation)
			}
		}
	}
}

// TestNarrow checks that no page is wider than a screen of 360 pixels: only tables, maps and
// diffs scroll sideways.
func TestNarrow(t *testing.T) {
	t.Parallel()
	f := pagetest.New(5, 300)
	server := lab(t, serve(t, f), `Promise.resolve([document.documentElement.scrollWidth, innerWidth])`)
	for name, path := range views(f) {
		var widths [2]int
		measured(t, &widths, server.URL+"/narrow?of="+url.QueryEscape(page.Root+path))
		if widths[1] < 300 || widths[1] > 360 || widths[0] > widths[1] {
			t.Errorf("%s is %d pixels wide on a screen of %d", name, widths[0], widths[1])
		}
	}
}

// TestWithoutJavaScript checks that a frame in which the browser runs no JavaScript shows the
// same pixels. A script that empties the page shows whether it runs.
func TestWithoutJavaScript(t *testing.T) {
	t.Parallel()
	f := pagetest.New(5, 300)
	server := serve(t, f)
	plain := lab(t, server, "")
	emptied := lab(t, server, `(document.body.innerHTML = "", Promise.resolve(0))`)
	image := func(from *httptest.Server, with string) []byte {
		path := filepath.Join(t.TempDir(), "page.png")
		query := url.Values{"of": {page.Root + "plan?name=workers-up-3f2a"}, "with": {with}}
		run(t, light, "--window-size=500,800", "--virtual-time-budget=10000", "--screenshot="+path, from.URL+"/narrow?"+query.Encode())
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	want, without, with := image(plain, ""), image(emptied, `sandbox="allow-same-origin"`), image(emptied, "")
	if !bytes.Equal(want, without) || len(want) < 10_000 {
		t.Errorf("images of %d and, without JavaScript, %d bytes differ, or are empty", len(want), len(without))
	}
	if bytes.Equal(want, with) {
		t.Error("the script did not run, so the test proves nothing")
	}
}

// TestLargeFleet loads pages of a fleet with 10,000 VMs and logs how long that takes.
func TestLargeFleet(t *testing.T) {
	t.Parallel()
	f := pagetest.New(150, 10_000)
	server := lab(t, serve(t, f), `(n => Promise.resolve({ms: Math.round(n.loadEventEnd), kib: Math.round(n.transferSize / 1024)}))(performance.getEntriesByType("navigation")[0])`)
	for _, path := range []string{"", "vms", "vms?q=workers-9", "hosts", "host?id=homelab%2Fpve001", "plans", "history"} {
		var took struct{ MS, KiB int }
		measured(t, &took, server.URL+page.Root+path)
		if took.KiB == 0 || took.KiB > 250 {
			t.Errorf("%q has %d KiB", path, took.KiB)
		}
		t.Logf("%-26q loaded in %d ms, %d KiB", path, took.MS, took.KiB)
	}
}

// TestScreenshots writes images of all pages, for people to look at.
func TestScreenshots(t *testing.T) {
	t.Parallel()
	if *screenshots == "" {
		return
	}
	f := pagetest.New(5, 300)
	server := serve(t, f)
	narrow := lab(t, server, "")
	for name, path := range views(f) {
		for scheme, setting := range map[string]string{"light": light, "dark": dark} {
			run(t, setting, "--window-size=1280,1400", "--screenshot="+filepath.Join(*screenshots, name+"-"+scheme+".png"), login(server, path))
		}
		run(t, light, "--window-size=500,800", "--screenshot="+filepath.Join(*screenshots, name+"-narrow.png"), narrow.URL+"/narrow?of="+url.QueryEscape(page.Root+path))
	}
}
