// Package simprogram builds and runs the simulators of the module test/sim, which numaform
// only runs as separate programs. It is used by internal/pvesim, internal/guestsim and
// internal/statesim. Start at Start.
package simprogram

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// environment is the environment of the go command: this process's environment at its start,
// with workspaces and cgo disabled.
var environment = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")

// built caches the paths of the programs by name; each process builds a program once.
var built sync.Map

// Path builds a simulator, unless its program is up to date, and returns the program's path.
func Path(name string) (string, error) {
	once, _ := built.LoadOrStore(name, sync.OnceValues(func() (string, error) { return build(name) }))
	return once.(func() (string, error))()
}

func build(name string) (string, error) {
	module, err := findModule()
	if err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	path := filepath.Join(module, "bin", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	unlock, err := lock(filepath.Join(module, "bin", ".lock"))
	if err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	defer unlock()
	cmd := exec.CommandContext(context.Background(), "go", "build", "-ldflags=-s -w", "-o", path, "./cmd/"+name) //nolint:gosec // the names of this repository
	cmd.Dir, cmd.Env = module, environment
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return path, nil
}

// findModule looks for test/sim in the working directory and its parents.
func findModule() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		module := filepath.Join(dir, "test", "sim")
		if _, err := os.Stat(filepath.Join(module, "go.mod")); err == nil {
			return module, nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return "", errors.New("no directory test/sim in the working directory or its parents: run this in a checkout of numaform")
		}
		dir = above
	}
}

// Program is a simulator. It runs until Close, or until this process ends.
type Program struct {
	name  string
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
	http  *http.Client
	hooks *hooks
}

// Start runs a simulator with a configuration, which is passed as JSON. config calls hook
// to get the URLs at which the program calls hooks.
func Start(name string, args []string, config func(hook func(Hook) string) (any, error)) (*Program, error) {
	path, err := Path(name)
	if err != nil {
		return nil, err
	}
	p := &Program{name: name, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	if p.hooks, err = newHooks(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	if err := p.start(path, args, config); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Program) start(path string, args []string, config func(hook func(Hook) string) (any, error)) error {
	given, err := config(p.hooks.add)
	if err != nil {
		return err
	}
	text, err := json.Marshal(given)
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	p.cmd = exec.CommandContext(context.Background(), path, args...) //nolint:gosec // one of ours
	p.cmd.Stderr = os.Stderr
	detach(p.cmd)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	p.stdin = stdin
	if _, err := stdin.Write(text); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	var hello struct{ Control, Error string }
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &hello)
	}
	switch {
	case err != nil:
		return fmt.Errorf("starting %s: %w", p.name, err)
	case hello.Error != "":
		return errors.New(hello.Error)
	}
	p.url = hello.Control
	return nil
}

// Close ends the program and waits for it. A second Close does nothing.
func (p *Program) Close() error {
	var err error
	if p.stdin != nil {
		_ = p.stdin.Close()
		p.stdin = nil
		if waited := p.cmd.Wait(); waited != nil && p.url != "" {
			err = fmt.Errorf("ending %s: %w", p.name, waited)
		}
	}
	p.http.CloseIdleConnections()
	p.hooks.close()
	return err
}

// Hook returns the URL at which the program can call a function, until Close.
func (p *Program) Hook(do Hook) string { return p.hooks.add(do) }

// Call sends a control request. in and out are encoded as JSON, and may be nil.
func (p *Program) Call(ctx context.Context, method, path string, in, out any) error {
	fail := func(err error) error { return fmt.Errorf("%s: %s %s: %w", p.name, method, path, err) }
	body, err := json.Marshal(in)
	if err != nil {
		return fail(err)
	}
	request, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return fail(err)
	}
	response, err := p.http.Do(request)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fail(err)
	case response.StatusCode != http.StatusOK:
		return errors.New(strings.TrimSpace(string(answer)))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fail(err)
	}
	return nil
}

// Must does the same as Call, for control requests that cannot fail unless the program is
// broken or closed. It panics on errors.
func (p *Program) Must(method, path string, in, out any) {
	if err := p.Call(context.Background(), method, path, in, out); err != nil {
		panic(err)
	}
}
