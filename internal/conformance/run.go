package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config selects the Proxmox VE cluster to compare, and the bounds of the run.
type Config struct {
	// URL is the address of the API, including /api2/json; Client sends the requests,
	// without HTTP/2 and without following redirects.
	URL    string
	Client *http.Client
	// Login is the configured credential. Root is root@pam with its password, or nil: cases
	// that require it are then skipped.
	Login Login
	Root  *Login
	// Pool and the VMIDs from Lower to Upper are the bounds of the objects that the run
	// creates and changes.
	Pool         string
	Lower, Upper int
	// Template is a VM template on Host that is cloned but never changed.
	Template int
	// Host is the template's host, on which VMs are created; empty means the host of the
	// template, whichever it is.
	Host string
	// Storage and ISOStorage are for disks and files; empty means the first suitable one.
	Storage, ISOStorage string
	Bridge              string
	// Only selects cases by "family/name"; nil means all.
	Only              *regexp.Regexp
	Destructive, Slow bool
	// RemoveLeftovers removes the VMs that an earlier run left in the bounds. If it is not
	// set, such VMs are a BoundsError.
	RemoveLeftovers bool
	// Progress is called with each result; it can be nil.
	Progress func(Result)
}

// The outcomes of a case.
const (
	Equal     = "equal"
	Different = "different"
	Skipped   = "skipped"
	// Failed is the outcome of a case that could not be completed: its initial state could
	// not be created, a request got no response, or its objects could not be removed.
	Failed = "failed"
)

// Result is the outcome of one case.
type Result struct {
	Family  string `json:"family"`
	Name    string `json:"name"`
	Source  string `json:"source"`
	Outcome string `json:"outcome"`
	// Detail lists the differences, or why the case was skipped or failed.
	Detail []string      `json:"detail,omitempty"`
	Took   time.Duration `json:"-"`
}

// BoundsError reports bounds that a run must not use.
type BoundsError struct{ text string }

func (e *BoundsError) Error() string { return e.text }

// fewestVMIDs is the number of VMIDs that cases need at the same time, in addition to one
// that remains unused.
const fewestVMIDs = 6

// cleanupTime limits the removal of what a run created.
const cleanupTime = 5 * time.Minute

// run is one comparison.
type run struct {
	cfg Config
	url string
	// values are the values of the placeholders.
	values     map[string]string
	hosts      []string // online
	configured http.Header
	root       http.Header // or nil
	version    string
	have       map[string]bool // words of Case.Needs
	tokens     map[string]http.Header
	shared     bool // the shared VM exists

	// Objects that the run created and must remove.
	vms     map[int]string // VMID to its host
	volumes []string       // paths of the requests that delete them
	cleanup []Step         // delete users, tokens, roles and pools; sent in reverse order
}

// Run compares a Proxmox VE cluster with the cases and removes the objects that it created,
// even if ctx ends or a case fails. The report is valid even with an error, which explains
// why the run could not start, ended early, or could not remove an object.
func Run(ctx context.Context, cfg Config, cases []Case) (Report, error) {
	r := &run{
		cfg:    cfg,
		url:    strings.TrimRight(cfg.URL, "/"),
		values: map[string]string{},
		have:   map[string]bool{},
		tokens: map[string]http.Header{},
		vms:    map[int]string{},
	}
	report := Report{}
	err := r.prepare(ctx)
	if err == nil {
		for i := range cases {
			if cfg.Only != nil && !cfg.Only.MatchString(cases[i].Family+"/"+cases[i].Name) {
				continue
			}
			if ctx.Err() != nil {
				err = fmt.Errorf("comparing: %w", context.Cause(ctx))
				break
			}
			result := r.compare(ctx, &cases[i])
			if ctx.Err() != nil && result.Outcome != Equal {
				continue // interrupted, which is not a result of Proxmox
			}
			report.Results = append(report.Results, result)
			if cfg.Progress != nil {
				cfg.Progress(result)
			}
		}
	}
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	err = errors.Join(err, r.removeSince(tidy, nil, 0, true))
	report.Version = r.version
	report.Hosts = strconv.Itoa(len(r.hosts))
	report.AsRoot = r.root != nil
	report.redact(r)
	return report, err
}

// compare runs one case.
func (r *run) compare(ctx context.Context, c *Case) Result {
	result := Result{Family: c.Family, Name: c.Name, Source: c.Source, Outcome: Skipped}
	needs := slices.Clone(c.Needs)
	for _, step := range slices.Concat(c.Before, []Step{c.Step}, c.Then) {
		if step.Privileges != nil || step.As == "root" {
			needs = append(needs, "root")
		}
	}
	if slices.Contains(c.Given, "iso") {
		needs = append(needs, "iso")
	}
	for bound := range strings.FieldsSeq(c.Version) {
		below := slices.Compare(versionNumbers(r.version), versionNumbers(bound)) < 0
		if below != strings.HasPrefix(bound, "<") {
			result.Detail = []string{"applies to Proxmox VE " + c.Version}
			return result
		}
	}
	for _, need := range needs {
		if !r.have[need] {
			result.Detail = []string{"requires " + needNames[need]}
			return result
		}
	}

	begun := time.Now()
	created := len(r.cleanup)
	before := slices.Collect(maps.Keys(r.vms))
	detail, err := r.try(ctx, c)
	// Remove what the case created before the next one starts, even after an interruption.
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if r.shared {
		before = append(before, r.cfg.Lower)
	}
	if tidyErr := r.removeSince(tidy, before, created, false); tidyErr != nil {
		err = errors.Join(err, tidyErr)
	}

	result.Took = time.Since(begun)
	result.Outcome = Equal
	if len(detail) > 0 {
		result.Outcome = Different
		result.Detail = detail
	}
	if err != nil {
		result.Outcome = Failed
		result.Detail = strings.Split(err.Error(), "\n")
	}
	return result
}

// try creates the initial state, sends the requests of a case, and returns the
// differences. Its error reports a problem with the initial state, or a request without a
// response.
func (r *run) try(ctx context.Context, c *Case) ([]string, error) {
	if err := r.given(ctx, c.Given); err != nil {
		return nil, fmt.Errorf("creating the initial state: %w", err)
	}
	for i := range c.Before {
		found, err := r.step(ctx, &c.Before[i])
		if err != nil {
			return nil, fmt.Errorf("creating the initial state: %w", err)
		}
		if len(found) > 0 {
			return nil, fmt.Errorf("creating the initial state: %s: %s", c.Before[i].Request, strings.Join(found, "; "))
		}
	}
	detail, err := r.step(ctx, &c.Step)
	for i := range c.Then {
		if err != nil || len(detail) > 0 {
			break
		}
		var found []string
		found, err = r.step(ctx, &c.Then[i])
		for _, line := range found {
			detail = append(detail, "then "+c.Then[i].Request+": "+line)
		}
	}
	return detail, err
}

// step sends one request, waits for the task that the request started, and returns the
// differences between the response or the task and the expected ones.
func (r *run) step(ctx context.Context, written *Step) ([]string, error) {
	s := written.filled(r.values)
	as := r.configured
	var err error
	switch {
	case s.Privileges != nil:
		if as, err = r.token(ctx, s.Privileges); err != nil {
			return nil, err
		}
	case s.As == "none":
		as = nil
	case s.As == "root":
		as = r.root
	case s.As == "keeper":
		as = r.keeper()
	}
	if err := r.within(&s); err != nil {
		return nil, err
	}
	got, err := r.send(ctx, &s, as)
	if err != nil {
		return nil, err
	}
	upid := r.created(&s, got)
	found := s.Want.differences(got)
	if upid == "" {
		if s.Want.Task != nil && len(found) == 0 {
			found = append(found, "data: got no UPID")
		}
		return found, nil
	}
	r.values["upid"] = upid
	r.values["upid-host"] = upidPart(upid, 1)
	exit, err := r.await(ctx, upid, as)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return append(found, "task: "+err.Error()), nil
	}
	want := s.Want.Task
	if want == nil {
		want = &Task{Exit: "OK"}
	}
	for _, part := range []struct{ name, got, want string }{
		{"task's exit status", exit, want.Exit},
		{"host of the task", upidPart(upid, 1), want.Host},
		{"type of the task", upidPart(upid, 5), want.Type},
	} {
		if part.want != "" && !matches(part.want, part.got) {
			found = append(found, fmt.Sprintf("%s: expected %s, got %s", part.name, shown(part.want), shown(part.got)))
		}
	}
	return found, nil
}

// created records what a request created, as soon as Proxmox accepted it. It returns the
// UPID of the request's task, or "".
func (r *run) created(s *Step, got *answer) (upid string) {
	upid, _ = got.data.(string)
	if upidPart(upid, 1) == "" {
		upid = ""
	}
	method, path, _ := strings.Cut(s.Request, " ")
	if got.status != http.StatusOK || method != http.MethodPost {
		return upid
	}
	vm := func(vmid, host string) {
		if id, err := strconv.Atoi(vmid); err == nil && r.inRange(id) {
			r.vms[id] = host
		}
	}
	undo := func(request string, params map[string]string) {
		r.cleanup = append(r.cleanup, Step{Request: request, Params: params})
	}
	parts := strings.Split(path, "/")
	switch {
	case strings.HasSuffix(path, "/qemu"):
		vm(s.Params["vmid"], parts[2])
	case strings.HasSuffix(path, "/clone"):
		vm(s.Params["newid"], cmp.Or(s.Params["target"], parts[2]))
	case (strings.HasSuffix(path, "/upload") || strings.HasSuffix(path, "/download-url")) && upid != "":
		name := s.Params["filename"]
		if s.File != nil {
			name = s.File.Name
		}
		storage := parts[4]
		r.volumes = append(r.volumes, fmt.Sprintf("/nodes/%s/storage/%s/content/%s:%s/%s", parts[2], storage, storage, s.Params["content"], name))
	case path == "/pools":
		undo("DELETE /pools", map[string]string{"poolid": s.Params["poolid"]})
	case path == "/access/users":
		undo("DELETE "+path+"/"+s.Params["userid"], nil)
	case path == "/access/roles":
		undo("DELETE "+path+"/"+s.Params["roleid"], nil)
	case strings.HasPrefix(path, "/access/users/"):
		undo("DELETE "+path, nil)
	}
	return upid
}

func (r *run) inRange(vmid int) bool { return vmid >= r.cfg.Lower && vmid <= r.cfg.Upper }

// keeper returns the credential that creates and removes the objects of cases.
func (r *run) keeper() http.Header {
	if r.root != nil {
		return r.root
	}
	return r.configured
}

// must sends a request of the run itself, which must succeed, with the keeper's
// credential, and waits for its task.
func (r *run) must(ctx context.Context, request string, params map[string]string) (*answer, error) {
	s := &Step{Request: request, Params: params}
	if err := r.within(s); err != nil {
		return nil, err
	}
	got, err := r.send(ctx, s, r.keeper())
	if err != nil {
		return nil, err
	}
	if got.status != http.StatusOK {
		return got, fmt.Errorf("%s: %d %s %v", request, got.status, got.reason, got.errors)
	}
	upid := r.created(s, got)
	if upid == "" {
		return got, nil
	}
	exit, err := r.await(ctx, upid, r.keeper())
	if err == nil && exit != "OK" && !strings.HasPrefix(exit, "WARNINGS") {
		err = errors.New("the task ended with " + shown(exit))
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", request, err)
	}
	return got, err
}

// removeSince removes all VMs except keep, all volumes, and the objects of the cleanup steps
// from index first on. It removes users, tokens and roles only if access is set, because
// cases share them.
func (r *run) removeSince(ctx context.Context, keep []int, first int, access bool) error {
	err := r.removeVMs(ctx, keep)
	for _, volume := range r.volumes {
		err = errors.Join(err, r.remove(ctx, "DELETE "+volume, nil))
	}
	r.volumes = nil
	remaining := r.cleanup[:first:first]
	for _, step := range slices.Backward(r.cleanup[first:]) {
		if !access && strings.HasPrefix(step.Request, "DELETE /access/") {
			remaining = slices.Insert(remaining, first, step)
			continue
		}
		err = errors.Join(err, r.remove(ctx, step.Request, step.Params))
	}
	r.cleanup = remaining
	return err
}

// removeVMs stops and destroys the run's VMs, except keep.
func (r *run) removeVMs(ctx context.Context, keep []int) error {
	var errs []error
	// A clone has a higher VMID than the template that it is linked to, and must be
	// removed before the template.
	for _, vmid := range slices.Backward(slices.Sorted(maps.Keys(r.vms))) {
		if slices.Contains(keep, vmid) {
			continue
		}
		if err := r.removeVM(ctx, vmid); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(r.vms, vmid)
	}
	return errors.Join(errs...)
}

func (r *run) removeVM(ctx context.Context, vmid int) error {
	path := fmt.Sprintf("/nodes/%s/qemu/%d", r.vms[vmid], vmid)
	got, err := r.send(ctx, &Step{Request: "GET " + path + "/status/current"}, r.keeper())
	switch {
	case err != nil:
		return err
	case got.status == http.StatusInternalServerError && strings.Contains(got.reason, "does not exist"):
		return nil
	case got.status != http.StatusOK:
		return fmt.Errorf("removing VM %d: %d %s", vmid, got.status, got.reason)
	}
	status, _ := got.data.(map[string]any)
	params := map[string]string{}
	if textOf(status["lock"]) != "null" && r.root != nil {
		params["skiplock"] = "1"
	}
	if textOf(status["status"]) == "running" {
		if err := r.remove(ctx, "POST "+path+"/status/stop", params); err != nil {
			return err
		}
	}
	config, err := r.send(ctx, &Step{Request: "GET " + path + "/config"}, r.keeper())
	if err != nil {
		return err
	}
	if members, _ := config.data.(map[string]any); textOf(members["protection"]) == "1" {
		if err := r.remove(ctx, "PUT "+path+"/config", map[string]string{"protection": "0"}); err != nil {
			return err
		}
	}
	return r.remove(ctx, "DELETE "+path, params)
}

// remove sends a request that removes an object of the run.
func (r *run) remove(ctx context.Context, request string, params map[string]string) error {
	if _, err := r.must(ctx, request, params); err != nil {
		return fmt.Errorf("removing objects of the run: %w", err)
	}
	return nil
}
