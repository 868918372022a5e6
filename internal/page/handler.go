package page

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

//go:embed web
var web embed.FS

// policy is the Content-Security-Policy of all responses except images: no scripts, and
// nothing from elsewhere.
const policy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// imagePolicy is the policy of images, whose style sheet is in the image.
const imagePolicy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

// errNotFound is the error of a view of an unknown object.
var errNotFound = errors.New("not found")

// Handler returns the handler of all requests.
func (p *Page) Handler() http.Handler {
	mux := http.NewServeMux()
	for name, v := range views {
		path := Root + name
		if name == "" {
			path += "{$}"
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { p.serveView(w, r, v) })
	}
	mux.HandleFunc(Root+"map.svg", p.serveMap)
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"} {
		content, err := web.ReadFile("web/" + name)
		mux.HandleFunc(Root+name, func(w http.ResponseWriter, _ *http.Request) {
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(content) // the client may be gone
		})
	}
	mux.Handle("/{$}", http.RedirectHandler(Root, http.StatusFound))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, http.StatusNotFound, "There is no such page.")
	})

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "This page only shows: to approve or change something, use kubectl, numaform or pull requests.", http.StatusMethodNotAllowed)
			return
		}
		if code, problem := p.config.Access.check(r); code != http.StatusOK {
			switch code {
			case http.StatusUnauthorized:
				header.Set("WWW-Authenticate", `Basic realm="numaform", charset="UTF-8"`)
			case http.StatusTooManyRequests:
				header.Set("Retry-After", "5")
			}
			p.fail(w, r, code, problem)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// layout is what every page has.
type layout struct {
	// Title is the title of the page, and View the name of its view.
	Title, View string
	// Code is the HTTP status of an error; 0 otherwise.
	Code                   int
	ClusterID, Version     string
	ReadAt                 string
	Age                    string
	Unread                 []string
	Login                  bool
	WaitsCount, PlansCount int
	// Body is the content of the view.
	Body any
}

func (p *Page) serveView(w http.ResponseWriter, r *http.Request, v view) {
	data := p.current(r.Context())
	if data == nil {
		p.fail(w, r, http.StatusServiceUnavailable, "The fleet is still being read. Reload the page in a few seconds.")
		return
	}
	title, body, err := v.show(p, data, r)
	switch {
	case errors.Is(err, errNotFound), apierrors.IsNotFound(err):
		p.fail(w, r, http.StatusNotFound, title+" does not exist, or no longer exists.")
		return
	case err != nil:
		p.fail(w, r, http.StatusServiceUnavailable, err.Error())
		return
	}
	p.write(w, r, v.template, http.StatusOK, &layout{
		Title: title, View: v.tab, ClusterID: data.Status.ClusterID, Version: p.config.Version,
		ReadAt: data.at.UTC().Format(timeFormat), Age: topology.Age(p.config.Clock.Since(data.at)), Unread: data.Unread,
		PlansCount: len(data.Status.Pending), Body: body,
	})
}

// fail writes a page with an error. It shows nothing of the fleet.
func (p *Page) fail(w http.ResponseWriter, r *http.Request, code int, problem string) {
	p.write(w, r, "error", code, &layout{Title: http.StatusText(code), Code: code, Login: code == http.StatusUnauthorized, Body: problem})
}

func (p *Page) write(w http.ResponseWriter, r *http.Request, name string, code int, content *layout) {
	var out bytes.Buffer
	if err := p.templates[name].Execute(&out, content); err != nil {
		log.FromContext(r.Context()).Error(err, "could not render a page")
		http.Error(w, "The page could not be rendered; numaform's log has the reason.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(out.Bytes()) // the client may be gone
}

// serveMap draws the CPU map of a host.
func (p *Page) serveMap(w http.ResponseWriter, r *http.Request) {
	data := p.current(r.Context())
	host, ok := hostOf(data, r)
	if !ok {
		http.Error(w, "There is no such host.", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "image/svg+xml")
	w.Header().Set("Content-Security-Policy", imagePolicy)
	drawn, owners := p.drawable(data, host)
	_, _ = w.Write(cpumap.SVG([]topology.Host{drawn}, map[topology.HostID]cpumap.Ownership{host.ID(): owners})) // the client may be gone
}

// drawable returns a host and the owners of its CPUs, for a map without secrets.
func (p *Page) drawable(data *Data, host *topology.Host) (topology.Host, cpumap.Ownership) {
	drawn := *host
	drawn.Problem, drawn.Model = p.clean(host.Problem), p.clean(host.Model)
	drawn.Warnings, drawn.Guests = slices.Clone(host.Warnings), slices.Clone(host.Guests)
	for i := range drawn.Warnings {
		drawn.Warnings[i] = p.clean(drawn.Warnings[i])
	}
	for i := range drawn.Guests {
		drawn.Guests[i].Name = p.clean(drawn.Guests[i].Name)
	}
	vms := data.Fleet.On(host.ID())
	for i := range vms {
		vms[i].Name = p.clean(vms[i].Name)
	}
	return drawn, cpumap.Owners(&drawn, vms)
}

// clean returns a value as text without secrets, control characters, and characters that
// change the direction of text.
func (p *Page) clean(value any) string {
	return term.Printable(p.config.Redact(fmt.Sprint(value)))
}

// templates returns the templates by name. Every value that they print passes through clean
// first, and then through the escaping of html/template.
func templates(clean func(any) string) map[string]*template.Template {
	pages := map[string]*template.Template{}
	for _, name := range []string{"overview", "vms", "hosts", "host", "plans", "plan", "history", "change", "error"} {
		t := template.Must(template.New("layout.html").Funcs(template.FuncMap{"clean": clean, "at": at, "gib": gib, "section": newSection}).
			ParseFS(web, "web/layout.html", "web/"+name+".html"))
		for _, one := range t.Templates() {
			if one.Tree != nil {
				cleanAll(one.Tree.Root)
			}
		}
		pages[name] = t
	}
	return pages
}

// cleanAll appends the function clean to every printed value below a node.
func cleanAll(node parse.Node) {
	var branch *parse.BranchNode
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, child := range n.Nodes {
			cleanAll(child)
		}
	case *parse.ActionNode:
		if len(n.Pipe.Decl) == 0 {
			name := parse.NewIdentifier("clean").SetPos(n.Pos)
			n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Pos, Args: []parse.Node{name}})
		}
	case *parse.IfNode:
		branch = &n.BranchNode
	case *parse.RangeNode:
		branch = &n.BranchNode
	case *parse.WithNode:
		branch = &n.BranchNode
	}
	if branch != nil {
		cleanAll(branch.List)
		cleanAll(branch.ElseList)
	}
}

// timeFormat is the format of times, which are in UTC.
const timeFormat = "2006-01-02 15:04:05 UTC"

// at returns a time as text, or "" if it is unknown.
func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeFormat)
}

// gib formats MiB as GiB, rounded down, or as a dash if they are unknown.
func gib(mib int64) string {
	if mib < 0 {
		return "–"
	}
	return strconv.FormatInt(mib/1024, 10)
}

// section is a list with a title.
type section struct {
	Title string
	Lines lines
}

func newSection(title string, l lines) section { return section{Title: title, Lines: l} }

// hostOf returns the host of the parameter id.
func hostOf(data *Data, r *http.Request) (*topology.Host, bool) {
	var id topology.HostID
	if data == nil || data.Snapshot == nil || id.UnmarshalText([]byte(r.URL.Query().Get("id"))) != nil {
		return nil, false
	}
	host := data.Snapshot.Host(id)
	return host, host != nil
}

// contains reports whether a text contains another one, in any case.
func contains(text, part string) bool {
	return strings.Contains(strings.ToLower(text), part)
}
