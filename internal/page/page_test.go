package page_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/html"
	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/page"
	"github.com/numaform/numaform/internal/page/pagetest"
	"github.com/numaform/numaform/internal/redact"
	"github.com/numaform/numaform/topology"
)

// served is a page that is being served.
type served struct {
	handler http.Handler
	api     *pagetest.API
	clock   *testclock.FakeClock
	reads   atomic.Int32
}

// serve serves a fleet until the test ends.
func serve(tb testing.TB, f *pagetest.Fleet) *served {
	tb.Helper()
	s := &served{api: pagetest.NewAPI(), clock: testclock.NewFakeClock(pagetest.Now)}
	p := page.New(page.Config{
		Read:   func(context.Context) *page.Data { s.reads.Add(1); return f.Data() },
		Plan:   f.Plan,
		Access: page.NewAccess(s.api, s.clock),
		Redact: redact.New([]string{"PROXMOX_TOKEN_SECRET=" + secret}).Text,
		Clock:  s.clock,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	tb.Cleanup(func() { cancel(); <-done })
	s.handler = p.Handler()
	return s
}

// do makes a request with a header Authorization, or with none if it is empty.
func (s *served) do(method, path, authorization string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, path, nil)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response := httptest.NewRecorder()
	s.handler.ServeHTTP(response, request)
	return response
}

// get returns a page for the reader.
func (s *served) get(tb testing.TB, path string) string {
	tb.Helper()
	response := s.do(http.MethodGet, path, "Bearer "+pagetest.Reader)
	if response.Code != http.StatusOK {
		tb.Fatalf("%s: %d: %s", path, response.Code, response.Body)
	}
	return response.Body.String()
}

func basic(password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte("anyone:"+password))
}

// paths are one URL of each kind. The IDs exist in the fleets of pagetest.
func paths(f *pagetest.Fleet) []string {
	host, change := f.Snapshot.Hosts[0].ID().String(), f.History[len(f.History)-1].Change.ID
	list := []string{"", "vms", "vms?q=workers&pool=workers&state=running&page=2", "hosts", "host?id=" + url.QueryEscape(host), "plans", "history", "change?id=" + change, "map.svg?id=" + host, "style.css", "icon.svg"}
	for i := range f.Plans {
		list = append(list, "plan?name="+url.QueryEscape(f.Plans[i].Name))
	}
	for i := range list {
		list[i] = page.Root + list[i]
	}
	return list
}

// TestNothingWithoutToken checks that each path needs a token of a user who may read the page,
// and that a rejected request learns nothing about the fleet.
func TestNothingWithoutToken(t *testing.T) {
	t.Parallel()
	f := pagetest.New(3, 30)
	s := serve(t, f)
	type attempt struct {
		name, path, authorization string
		want                      int
	}
	var attempts []attempt
	for _, path := range append(paths(f), "/", "/favicon.ico", page.Root+"nothing", "/metrics") {
		attempts = append(
			attempts,
			attempt{"no token", path, "", http.StatusUnauthorized},
			attempt{"an empty token", path, "Bearer ", http.StatusUnauthorized},
			attempt{"an empty password", path, basic(""), http.StatusUnauthorized},
			attempt{"an unknown token", path, "Bearer unknown", http.StatusUnauthorized},
			attempt{"a token in another scheme", path, "Digest " + pagetest.Reader, http.StatusUnauthorized},
			attempt{"a long token", path, "Bearer " + strings.Repeat("x", 20<<10), http.StatusUnauthorized},
			attempt{"a user without the role", path, basic(pagetest.Stranger), http.StatusForbidden},
		)
	}
	for _, a := range attempts {
		response := s.do(http.MethodGet, a.path, a.authorization)
		if response.Code == http.StatusTooManyRequests { // the limit itself has a test of its own
			<-time.After(time.Second)
			response = s.do(http.MethodGet, a.path, a.authorization)
		}
		if response.Code != a.want {
			t.Fatalf("%s with %s: %d, want %d", a.path, a.name, response.Code, a.want)
		}
		for _, part := range []string{"workers", "pve0", "prod", "homelab", "grid-template"} {
			if strings.Contains(response.Body.String(), part) {
				t.Errorf("%s with %s: the response contains %q", a.path, a.name, part)
			}
		}
		if login := response.Header().Get("WWW-Authenticate"); (response.Code == http.StatusUnauthorized) != (login != "") {
			t.Errorf("%s with %s: %d with WWW-Authenticate %q", a.path, a.name, response.Code, login)
		}
	}
	if n := s.reads.Load(); n != 0 {
		t.Errorf("the fleet was read %d times for rejected requests", n)
	}
}

// TestBothLogins checks that a browser's login and a bearer token are accepted.
func TestBothLogins(t *testing.T) {
	t.Parallel()
	f := pagetest.New(3, 30)
	s := serve(t, f)
	for _, authorization := range []string{basic(pagetest.Reader), "Bearer " + pagetest.Reader, "bearer  " + pagetest.Reader} {
		for _, path := range paths(f) {
			if response := s.do(http.MethodGet, path, authorization); response.Code != http.StatusOK {
				t.Errorf("%s: %d: %s", path, response.Code, response.Body)
			}
		}
	}
	if n := s.api.Reviews(); n != 1 {
		t.Errorf("the token was reviewed %d times within a second, want once", n)
	}
	s.clock.Step(time.Minute)
	s.get(t, page.Root)
	if n := s.api.Reviews(); n != 2 {
		t.Errorf("the token was reviewed %d times, want again after a minute", n)
	}
	s.clock.Step(time.Minute)
	s.api.Down = true
	if response := s.do(http.MethodGet, page.Root, basic(pagetest.Reader)); response.Code != http.StatusServiceUnavailable {
		t.Errorf("while the API server is down: %d, want 503", response.Code)
	}
}

// TestFlood checks that wrong tokens do not load the API server, and that readers who are
// already logged in do not notice them.
func TestFlood(t *testing.T) {
	t.Parallel()
	s := serve(t, pagetest.New(3, 30))
	s.get(t, page.Root)
	limited := 0
	for i := range 500 {
		if s.do(http.MethodGet, page.Root, fmt.Sprintf("Bearer wrong-%d", i)).Code == http.StatusTooManyRequests {
			limited++
		}
	}
	if n := s.api.Reviews(); n > 200 || limited < 300 {
		t.Errorf("%d reviews for 501 tokens, and %d requests were limited", n, limited)
	}
	s.clock.Step(2 * time.Minute)
	s.get(t, page.Root)
}

// TestNoWrites checks that no method but GET and HEAD is served, with or without a token.
func TestNoWrites(t *testing.T) {
	t.Parallel()
	f := pagetest.New(3, 30)
	s := serve(t, f)
	for _, path := range append(paths(f), "/", page.Root+"nothing") {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get"} {
			for _, authorization := range []string{"", basic(pagetest.Reader)} {
				response := s.do(method, path, authorization)
				if response.Code != http.StatusMethodNotAllowed || response.Header().Get("Allow") != "GET, HEAD" {
					t.Errorf("%s %s: %d, Allow %q", method, path, response.Code, response.Header().Get("Allow"))
				}
			}
		}
	}
	if n := s.reads.Load() + int32(s.api.Reviews()); n != 0 {
		t.Errorf("%d reads and reviews", n)
	}
	for _, path := range paths(f) {
		if response := s.do(http.MethodHead, path, basic(pagetest.Reader)); response.Code != http.StatusOK {
			t.Errorf("HEAD %s: %d", path, response.Code)
		}
	}
	for _, action := range s.api.Actions() {
		if r := action.GetResource().Resource; r != "tokenreviews" && r != "subjectaccessreviews" {
			t.Errorf("the page sent %s %s to the API server", action.GetVerb(), r)
		}
	}
}

// TestReadsAreShared checks that the number of requests does not change how often the fleet is
// read.
func TestReadsAreShared(t *testing.T) {
	t.Parallel()
	s := serve(t, pagetest.New(3, 30))
	for range 50 {
		s.get(t, page.Root)
		s.get(t, page.Root+"vms")
	}
	if n := s.reads.Load(); n != 1 {
		t.Errorf("the fleet was read %d times for 100 requests, want once", n)
	}
	s.clock.Step(5 * time.Minute) // too old to be shown
	s.get(t, page.Root)
	if n := s.reads.Load(); n != 2 {
		t.Errorf("the fleet was read %d times, want twice", n)
	}
}

// TestHeaders checks that no response allows scripts, frames or content from elsewhere, sets a
// cookie, or may be stored.
func TestHeaders(t *testing.T) {
	t.Parallel()
	f := pagetest.New(3, 30)
	s := serve(t, f)
	for _, path := range paths(f) {
		for _, authorization := range []string{"", basic(pagetest.Reader)} {
			header := s.do(http.MethodGet, path, authorization).Header()
			policy := header.Get("Content-Security-Policy")
			if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "script") || !strings.Contains(policy, "frame-ancestors 'none'") {
				t.Errorf("%s: Content-Security-Policy %q", path, policy)
			}
			for name, want := range map[string]string{
				"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
				"Cross-Origin-Resource-Policy": "same-origin", "Set-Cookie": "",
			} {
				if got := header.Get(name); got != want {
					t.Errorf("%s: %s is %q, want %q", path, name, got, want)
				}
			}
		}
	}
}

const (
	secret = "7ba3c7a5-c4c7-4b1e-8f7e-6d1f2b9d0a11"
	hidden = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0abc.c2lnbmF0dXJl"
	// hostile is a name with markup, quotes and characters that change the direction of text.
	hostile = `<script>alert(1)</script>"'><img src=x onerror=alert(1)>` + "\u202e\x1b[31m&amp;"
)

// infected returns a fleet with a text in each place that others control.
func infected(text string) *pagetest.Fleet {
	f := pagetest.New(3, 30)
	for i := range f.Snapshot.Hosts {
		host := &f.Snapshot.Hosts[i]
		host.Model, host.Warnings = text, []string{text}
		host.Guests = append(host.Guests, topology.Guest{VMID: 300 + i, Name: text, Kind: topology.GuestVM, Running: true, VCPUs: 1, Pins: topology.CPUs(3)})
	}
	f.Snapshot.Hosts[1].Problem = text
	for i := range f.Fleet.VMs {
		vm := &f.Fleet.VMs[i]
		vm.Name, vm.Pool, vm.InstanceType, vm.Tags, vm.Seed, vm.Reason = text, text, text, []string{text}, "local:iso/numaform-prod-2000-1.iso", text
	}
	for i := range f.History {
		change := &f.History[i].Change
		change.Why, change.Actor, change.Kind, change.Outside = text, text, audit.Kind(text), []string{text}
		change.Approval = &audit.Approval{By: text, Digest: text, BreakGlass: text}
		change.Added[0].Name, change.Added[0].Reason = text, text
		change.Hosts[0].Error, f.History[i].Outcome.Hosts[0].Error = text, text
		f.History[i].Commit = text
	}
	for i := range f.Plans {
		spec := &f.Plans[i].Spec
		spec.Summary, spec.Why, spec.RequestedBy, spec.Cost, spec.Diff, spec.Reasons, spec.NodePools = text, text, text, text, text+"\n", []string{text}, []string{text}
		spec.Approve, spec.ApprovedBy = "x", text
		for j := range spec.VMs {
			spec.VMs[j].Name, spec.VMs[j].Reason, spec.VMs[j].Pods = text, text, []string{text}
		}
		f.Plans[i].Status.Result = text
	}
	f.Plans[0].Name = text
	for i := range f.Waits {
		f.Waits[i].NodePool, f.Waits[i].Message = text, text
	}
	return f
}

// TestHostileNames checks that no text of users, pods, guests or commits becomes markup, and
// that none of it can reorder the text around it.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	f := infected(hostile)
	s := serve(t, f)
	seen := 0
	for _, path := range paths(f) {
		body := s.get(t, path)
		seen += strings.Count(body, "&lt;script&gt;alert(1)")
		if strings.ContainsAny(body, "\u202e\x1b") {
			t.Errorf("%s contains control characters", path)
		}
		tree := html.NewTokenizer(strings.NewReader(body))
		for {
			kind := tree.Next()
			if kind == html.ErrorToken {
				break
			}
			if kind != html.StartTagToken && kind != html.SelfClosingTagToken {
				continue
			}
			token := tree.Token()
			if token.Data == "script" || token.Data == "iframe" || token.Data == "object" || token.Data == "style" && !strings.Contains(path, ".svg") {
				t.Errorf("%s has an element %s", path, token.Data)
			}
			for _, a := range token.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "style" && !strings.Contains(path, ".svg") {
					t.Errorf("%s: %s has an attribute %s=%q", path, token.Data, a.Key, a.Val)
				}
				if outside := regexp.MustCompile(`^(?i)([a-z]+:|//)`); (a.Key == "href" || a.Key == "src" || a.Key == "action") && outside.MatchString(a.Val) {
					t.Errorf("%s: %s refers to %q", path, token.Data, a.Val)
				}
			}
		}
	}
	if seen < 40 {
		t.Errorf("the hostile text is shown %d times: does the test still reach all places?", seen)
	}
}

// TestSecrets checks that known secrets, and texts that look like one, are on no page.
func TestSecrets(t *testing.T) {
	t.Parallel()
	f := infected("could not log in with " + secret + " or " + hidden + " at https://alice:hunter22@git.example/fleet")
	s := serve(t, f)
	removed := 0
	for _, path := range paths(f) {
		body := s.get(t, path)
		removed += strings.Count(body, redact.Mark)
		for _, text := range []string{secret, hidden, "hunter22", pagetest.Reader, ".iso"} {
			if strings.Contains(body, text) {
				t.Errorf("%s contains %s", path, text)
			}
		}
	}
	if removed < 40 {
		t.Errorf("%d secrets were removed: does the test still reach all places?", removed)
	}
}

// TestLinks follows every link from the first page: each leads to a page.
func TestLinks(t *testing.T) {
	t.Parallel()
	s := serve(t, pagetest.New(5, 300))
	link := regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	done, todo := map[string]bool{}, []string{page.Root}
	for len(todo) > 0 {
		path := todo[0]
		todo = todo[1:]
		if done[path] {
			continue
		}
		done[path] = true
		base, err := url.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range link.FindAllStringSubmatch(s.get(t, path), -1) {
			to, err := base.Parse(html.UnescapeString(match[1]))
			if err != nil {
				t.Errorf("%s: link %q: %v", path, match[1], err)
				continue
			}
			to.Fragment = ""
			todo = append(todo, to.String())
		}
	}
	for _, want := range []string{"vms?page=3", "host?id=homelab%2fpve005", "plan?name=workers-up-3f2a", "map.svg?id=homelab%2fpve001", "vms?pool=batch"} {
		if !slices.ContainsFunc(slices.Collect(keys(done)), func(path string) bool { return strings.EqualFold(path, page.Root+want) }) {
			t.Errorf("no link leads to %s", want)
		}
	}
}

func keys(m map[string]bool) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

// TestViews checks what each view shows.
func TestViews(t *testing.T) {
	t.Parallel()
	f := pagetest.New(5, 300)
	f.Paused = true
	s := serve(t, f)
	for path, want := range map[string][]string{
		"": {
			"<b>300</b> VMs", "6 standby", "<b>4</b> of 5 hosts online", "<b>1</b> pending approval", "numaform is paused", "workers-up-3f2a</a>: 2 to create",
			"the storage local-lvm is full", "6 vCPUs instead of 4", "homelab/pve005: offline: start it",
		},
		"vms":                                 {"1–100 of 300", `href="?page=2"`, ">workers-2000<", "1-2,17-18"},
		"vms?page=3":                          {"201–300 of 300", `href="?page=2"`},
		"vms?page=99":                         {"201–300 of 300"},
		"vms?page=-1":                         {"1–100 of 300"},
		"vms?q=PVE002":                        {"1–60 of 60"},
		"vms?q=2007":                          {"1–1 of 1", "s-standby"},
		"vms?state=missing":                   {"1–6 of 6"},
		"vms?pool=batch&state=running":        {`<option selected>batch</option>`, `<option selected>running</option>`},
		"vms?q=nowhere":                       {"No VM matches."},
		"hosts?q=offline":                     {"homelab/pve005", "1–1 of 1"},
		"host?id=homelab/pve001":              {"map.svg?id=homelab%2fpve001", "NUMA node", "workers-2000", "[", "GiB free"},
		"plans":                               {"workers-up-3f2a", "p-Pending", "PendingApproval"},
		"plan?name=workers-up-3f2a":           {`<span class="add">      + name      = "workers-9001"</span>`, `<span class="del">`, `<span class="chg">`, "shop/web-0, shop/web-1", "numaform approve workers-up-3f2a --hash " + strings.Repeat("3f2a", 16)},
		"plan?name=workers-down-77aa":         {"bob: after the release"},
		"history":                             {"1–60 of 60", "scale-down", "failed on 1 of 1 hosts"},
		"history?q=scale-down":                {"1–6 of 6"},
		"change?id=" + f.History[0].Change.ID: {"3 pods need new nodes", "done in 42s", "the fullest host that has room", "plan digest  c0c0", "create 1"},
		"change?id=" + f.History[9].Change.ID: {"failed after 40s", "the storage local-lvm is full"},
	} {
		body := html.UnescapeString(s.get(t, page.Root+path))
		for _, part := range want {
			if !strings.Contains(body, part) {
				t.Errorf("%s lacks %q", path, part)
			}
		}
	}
	if body := s.get(t, page.Root+"plan?name=workers-down-77aa"); strings.Contains(body, "numaform approve") {
		t.Error("a rejected plan is offered for approval")
	}
	for _, path := range []string{"host?id=homelab/none", "host?id=x", "plan?name=none", "change?id=none", "map.svg?id=none", "nothing"} {
		if response := s.do(http.MethodGet, page.Root+path, basic(pagetest.Reader)); response.Code != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", path, response.Code)
		}
	}
}

// TestLargeFleet checks that pages stay small with 10,000 VMs.
func TestLargeFleet(t *testing.T) {
	t.Parallel()
	f := pagetest.New(150, 10_000)
	s := serve(t, f)
	for _, path := range paths(f) {
		if body := s.get(t, path); len(body) > 200<<10 {
			t.Errorf("%s has %d KiB, want at most 200", path, len(body)>>10)
		}
	}
}

func BenchmarkLargeFleet(b *testing.B) {
	f := pagetest.New(150, 10_000)
	s := serve(b, f)
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			f.Data()
		}
	})
	for _, path := range []string{"", "vms", "vms?q=workers-9", "hosts", "host?id=homelab/pve001", "map.svg?id=homelab/pve001", "history"} {
		b.Run("GET "+path, func(b *testing.B) {
			for b.Loop() {
				s.get(b, page.Root+path)
			}
		})
	}
}
