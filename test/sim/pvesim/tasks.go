package pvesim

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// task is a worker started by a request.
type task struct {
	upid          string
	node          string
	pid, pstart   int
	kind, id      string
	user          identity
	started, done time.Time
	exit          string // empty while it runs
	log           []string
	fault         *Fault
}

// taskList contains the tasks of all hosts.
type taskList struct {
	ctx     context.Context //nolint:containedctx // the server's life: tasks end with it
	clock   clock.Clock
	running sync.WaitGroup
	// mu guards the fields below and the tasks' done, exit and log.
	mu    sync.Mutex
	byID  map[string]*task
	order []*task
}

func newTaskList(ctx context.Context, c clock.Clock) *taskList {
	return &taskList{ctx: ctx, clock: c, byID: map[string]*task{}}
}

func (l *taskList) wait() { l.running.Wait() }

// work is the function of a task. Its error is the task's exit status.
type work func(ctx context.Context, t *task) error

// errLeftBehind ends a task with the fault's text, as if the worker was killed.
var errLeftBehind = errors.New("worker was killed")

// fork starts a worker on the host that runs the method and returns its UPID.
func (r *request) fork(kind, id string, do work) string {
	return r.s.tasks.start(&task{node: r.at.name, kind: kind, id: id, user: r.who, fault: r.fault}, do)
}

func (l *taskList) start(t *task, do work) string {
	t.started = l.clock.Now()
	l.mu.Lock()
	serial := len(l.order) + 1
	t.pid, t.pstart = 1000+serial, 50000+10*serial
	t.upid = fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", t.node, t.pid, t.pstart, t.started.Unix(), t.kind, t.id, t.user)
	l.byID[t.upid] = t
	l.order = append(l.order, t)
	l.mu.Unlock()
	l.running.Go(func() {
		err := do(l.ctx, t)
		l.finish(t, err)
	})
	return t.upid
}

func (l *taskList) finish(t *task, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.done = l.clock.Now()
	switch {
	case err == nil:
		t.exit = "OK"
		t.log = append(t.log, "TASK OK")
		return
	case errors.Is(err, errLeftBehind):
		t.exit = "unexpected status"
		if t.fault.TaskExit != "" {
			t.exit = t.fault.TaskExit
		}
	default:
		t.exit = strings.TrimSpace(err.Error())
	}
	t.log = append(t.log, "TASK ERROR: "+t.exit)
}

// say adds a line to the task's log.
func (l *taskList) say(t *task, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.log = append(t.log, fmt.Sprintf(format, args...))
}

// sleep waits for the duration of the task's work. It returns an error if ctx ends first.
func (l *taskList) sleep(ctx context.Context, d time.Duration) error {
	timer := l.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return errors.New("interrupted by signal")
	}
}

// injected returns the error that the request's fault injects into the task, or nil.
func (t *task) injected() error {
	switch {
	case t.fault == nil || (t.fault.TaskExit == "" && !t.fault.LeaveLock):
		return nil
	case t.fault.LeaveLock:
		return errLeftBehind
	}
	return errors.New(t.fault.TaskExit)
}

// taskEntry returns a task's entry in lists.
func taskEntry(t *task) map[string]any {
	entry := map[string]any{
		"upid": t.upid, "node": t.node, "pid": t.pid, "pstart": t.pstart, "starttime": t.started.Unix(),
		"type": t.kind, "id": t.id, "user": t.user.user(),
	}
	if t.user.isToken() {
		_, name, _ := strings.Cut(string(t.user), "!")
		entry["tokenid"] = name
	}
	return entry
}

var upidText = regexp.MustCompile(`^UPID:[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?:[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8,9}:[0-9A-Fa-f]{8}:[^:\s/]+:[^:\s/]*:[^:\s/]+:$`)

// findTask returns the task in the request, if the caller started it or has the privilege
// on the node (pve-manager 9.2.11, PVE/API2/Tasks.pm; pve-common 9.2.1, PVE/UPID.pm).
func (r *request) findTask(privilege string) (*task, *apiError) {
	if !upidText.MatchString(r.p["upid"]) {
		return nil, oneParamError("upid", "unable to parse worker upid")
	}
	l := r.s.tasks
	l.mu.Lock()
	t := l.byID[r.p["upid"]]
	l.mu.Unlock()
	if t == nil || t.node != r.host.name {
		return nil, oneParamError("upid", "no such task")
	}
	if r.who != t.user && r.who != identity(t.user.user()) {
		if e := r.s.access.check(r.who, "/nodes/"+r.host.name, privilege); e != nil {
			return nil, e
		}
	}
	return t, nil
}

func taskStatus(r *request) (any, error) {
	t, e := r.findTask("Sys.Audit")
	if e != nil {
		return nil, e
	}
	r.s.tasks.mu.Lock()
	defer r.s.tasks.mu.Unlock()
	entry := taskEntry(t)
	entry["status"] = "running"
	if t.exit != "" {
		entry["status"], entry["exitstatus"] = "stopped", t.exit
	}
	return entry, nil
}

func taskLog(r *request) (any, error) {
	t, e := r.findTask("Sys.Audit")
	if e != nil {
		return nil, e
	}
	r.s.tasks.mu.Lock()
	lines := slices.Clone(t.log)
	r.s.tasks.mu.Unlock()
	limit := 50
	if r.p.has("limit") {
		limit = r.p.number("limit")
	}
	start := r.p.number("start")
	result := []any{}
	for i, line := range lines {
		if i >= start && (limit == 0 || len(result) < limit) {
			result = append(result, map[string]any{"n": i + 1, "t": line})
		}
	}
	if len(lines) == 0 {
		result = append(result, map[string]any{"n": 1, "t": "no content"})
	}
	return withMeta{data: result, meta: map[string]any{"total": max(len(lines), 1)}}, nil
}

// taskIndex handles GET of a task, which need not exist.
func taskIndex(*request) (any, error) {
	return []any{map[string]any{"name": "log"}, map[string]any{"name": "status"}}, nil
}

// stopTask handles DELETE of a task. It does not stop the worker, which ends on its own.
func stopTask(r *request) (any, error) {
	if _, e := r.findTask("Sys.Modify"); e != nil {
		return nil, e
	}
	return nil, nil
}

// nodeTasks handles GET /nodes/{node}/tasks, newest first.
func nodeTasks(r *request) (any, error) {
	limit := 50
	if r.p.has("limit") {
		limit = r.p.number("limit")
	}
	auditor := r.s.access.check(r.who, "/nodes/"+r.host.name, "Sys.Audit") == nil
	all := r.tasks(func(t *task) bool {
		mine := r.who == t.user || r.who == identity(t.user.user())
		return t.node == r.host.name && (auditor || mine) && (!r.p.has("vmid") || t.id == r.p["vmid"]) &&
			(!r.p.has("typefilter") || t.kind == r.p["typefilter"]) && t.selected(r.p["source"], r.p.flag("errors"))
	})
	start := min(r.p.number("start"), len(all))
	page := all[start:]
	page = page[:min(limit, len(page))]
	for _, entry := range page {
		if entry := entry.(map[string]any); entry["status"] == nil {
			entry["status"] = "RUNNING"
		}
	}
	if len(all) == 0 { // a total of 0 is omitted (pve-manager 9.2.11, PVE/HTTPServer.pm:208-210)
		return page, nil
	}
	return withMeta{data: page, meta: map[string]any{"total": len(all)}}, nil
}

// clusterTasks handles GET /cluster/tasks. Proxmox removes the token's name from a task's
// user before comparing it with the caller, so a token does not see its own tasks
// (pve-manager 9.2.11, PVE/API2/Cluster.pm:755-765).
func clusterTasks(r *request) (any, error) {
	auditor := r.s.access.check(r.who, "/", "Sys.Audit") == nil
	all := r.tasks(func(t *task) bool { return auditor || r.who == identity(t.user.user()) })
	return all[:min(len(all), 25)], nil
}

// selected reports whether the filters source (archive, active or all) and errors select
// the task.
func (t *task) selected(source string, onlyErrors bool) bool {
	switch source {
	case "active":
		if t.exit != "" {
			return false
		}
	case "all":
	default:
		if t.exit == "" {
			return false
		}
	}
	return !onlyErrors || (t.exit != "" && t.exit != "OK")
}

// tasks returns the chosen tasks, newest first.
func (r *request) tasks(chosen func(*task) bool) []any {
	l := r.s.tasks
	l.mu.Lock()
	defer l.mu.Unlock()
	result := []any{}
	for _, t := range slices.Backward(l.order) {
		if !chosen(t) {
			continue
		}
		entry := taskEntry(t)
		if t.exit != "" {
			entry["status"], entry["endtime"] = t.exit, t.done.Unix()
		}
		result = append(result, entry)
	}
	return result
}
