package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/terraform-exec/tfexec"
	"golang.org/x/mod/sumdb/dirhash"

	"github.com/numaform/numaform/internal/scratch"
)

// A command of the engine starts its provider up to three times, and a change runs
// three commands. So a provider is started once here, as the engine would start it,
// and the commands are told where it listens. It ends with the workspace, with the
// first command that fails, and with this process. The engine's variable for it,
// TF_REATTACH_PROVIDERS, is meant for providers under a debugger.

// startTimeout is how long a provider may take until it listens.
const startTimeout = time.Minute

// socketRoom is how much of a socket's path, of at most 107 bytes, is what is added to
// the directory for temporary files.
const socketRoom = 60

// served are the providers that run for a workspace.
type served struct {
	// key says which they are.
	key     string
	clients []*plugin.Client
	info    tfexec.ReattachInfo
	said    *tail
	// sockets is where they listen.
	sockets *scratch.Dir
}

// reattach returns where the engine finds the providers of this workspace, and starts
// those that do not run. What cannot be served is started by the engine itself, for
// each command, which then also says what is wrong with it.
func (w *Workspace) reattach(ctx context.Context) *tfexec.ReattachOption {
	packages := w.packages()
	key := fmt.Sprint(packages)
	if w.served == nil || w.served.key != key || w.served.died() {
		w.dismiss()
		w.served = &served{key: key, info: tfexec.ReattachInfo{}, said: &tail{}}
		for _, p := range packages {
			if err := w.start(ctx, p); err != nil {
				fmt.Fprintf(w.config.Log, "provider %s is started for each command: %s\n", p.address, w.hidden.hide(err.Error()))
			}
		}
	}
	return tfexec.Reattach(w.served.info)
}

// start starts a provider.
func (w *Workspace) start(ctx context.Context, p providerPackage) error {
	if len(os.TempDir()) > 107-socketRoom {
		return fmt.Errorf("its socket's path would be too long: set TMPDIR to a directory with a shorter name than %s", os.TempDir())
	}
	binary, err := w.config.Engine.verified(p)
	if err != nil {
		return err
	}
	if w.served.sockets == nil {
		if w.served.sockets, err = scratch.New(""); err != nil {
			return err
		}
	}
	// It must outlive ctx: a canceled engine ends it in good order.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary) //nolint:gosec // its hash is in the lock file
	cmd.Dir, cmd.SysProcAttr = w.config.Dir, mortal()
	for name, value := range w.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	// It would write traces that nobody reads.
	cmd.Env = append(cmd.Env, "TF_LOG_SDK=off", "TF_LOG_SDK_PROTO=off", "TF_LOG_PROVIDER_PROXMOX=off")
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			MagicCookieKey: "TF_PLUGIN_MAGIC_COOKIE", MagicCookieValue: "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2",
		},
		VersionedPlugins: map[int]plugin.PluginSet{5: {}, 6: {}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Cmd:              cmd, SkipHostEnv: true, UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: w.served.sockets.Path()},
		StartTimeout: startTimeout, Stderr: w.served.said, Logger: hclog.NewNullLogger(),
	})
	address, err := client.Start()
	if err != nil {
		client.Kill()
		return fmt.Errorf("starting %s: %w", binary, err)
	}
	w.served.clients = append(w.served.clients, client)
	w.served.info[p.address] = tfexec.ReattachConfig{
		Protocol: string(plugin.ProtocolGRPC), ProtocolVersion: client.NegotiatedVersion(), Pid: cmd.Process.Pid,
		// The engine leaves it running.
		Test: true,
		Addr: tfexec.ReattachConfigAddr{Network: address.Network(), String: address.String()},
	}
	return nil
}

// dismiss ends the providers. A provider in the middle of a call is given two seconds.
func (w *Workspace) dismiss() {
	if w.served == nil {
		return
	}
	for _, client := range w.served.clients {
		client.Kill()
	}
	if w.served.sockets != nil {
		_ = w.served.sockets.Remove() // the next process that needs one does
	}
	w.served = nil
}

// dismissWhenLost ends the providers as soon as ctx is canceled for ErrHostLost: they do
// not heed an engine that asks them to stop, and wait for the host. The engine takes
// what they were at for failed, and ends in good order. Call stop when it has ended.
func (w *Workspace) dismissWhenLost(ctx context.Context) (stop func()) {
	clients, done := w.served.clients, make(chan struct{})
	unheard := context.AfterFunc(ctx, func() {
		defer close(done)
		if errors.Is(context.Cause(ctx), ErrHostLost) {
			for _, client := range clients {
				client.Kill()
			}
		}
	})
	return func() {
		if unheard() {
			return
		}
		<-done
		w.dismiss()
	}
}

// fallen ends the providers after a command that failed, and returns why one of them
// died, if one did.
func (w *Workspace) fallen() string {
	if w.served == nil {
		return ""
	}
	died, said := w.served.died(), w.served.said
	w.dismiss()
	if !died {
		return ""
	}
	return "the provider died" + said.panic()
}

// died reports whether a provider listens no more. Its exit may not have been noticed yet.
func (s *served) died() bool {
	for _, config := range s.info {
		connection, err := net.DialTimeout(config.Addr.Network, config.Addr.String, startTimeout)
		if err != nil {
			return true
		}
		_ = connection.Close() // it was only asked for
	}
	return false
}

// providerPackage is a provider that a directory has installed.
type providerPackage struct {
	address string
	dir     string
	// hashes are those of the lock file.
	hashes []string
}

// packages returns the providers that the lock file names and init has installed.
func (w *Workspace) packages() []providerPackage {
	lock := filepath.Join(w.config.Dir, providerLock)
	content, err := os.ReadFile(lock)
	if err != nil {
		return nil // the engine says what is wrong with it
	}
	var found []providerPackage
	for _, block := range blocks(providerLock, content, "provider") {
		version := constant(block.Body.Attributes["version"])["version"]
		if len(block.Labels) != 1 || version == "" {
			continue
		}
		found = append(found, providerPackage{
			address: block.Labels[0], hashes: constants(block.Body.Attributes["hashes"]),
			dir: filepath.Join(w.config.Dir, ".terraform", "providers", filepath.FromSlash(block.Labels[0]), version, runtime.GOOS+"_"+runtime.GOARCH),
		})
	}
	return found
}

// verified returns the program of a provider whose files have a hash of the lock file.
// The engine does not look at those of a provider that it does not start.
func (e *Engine) verified(p providerPackage) (string, error) {
	dir, err := filepath.EvalSymlinks(p.dir)
	if err != nil {
		return "", fmt.Errorf("looking for provider %s: %w", p.address, err)
	}
	programs, err := filepath.Glob(filepath.Join(dir, "terraform-provider-*"))
	if err != nil || len(programs) != 1 {
		return "", fmt.Errorf("looking for provider %s: %d programs in %s, want one", p.address, len(programs), dir)
	}
	sum, err := e.sum(dir)
	if err != nil {
		return "", fmt.Errorf("hashing provider %s: %w", p.address, err)
	}
	if !slices.Contains(p.hashes, sum) {
		return "", fmt.Errorf("provider %s in %s has hash %s, which the lock file does not have", p.address, dir, sum)
	}
	return programs[0], nil
}

// sum returns the hash of a provider's files, as lock files have it. It is made anew
// only if one of them changed.
func (e *Engine) sum(dir string) (string, error) {
	state, err := fileStates(dir)
	if err != nil {
		return "", err
	}
	key := dir + "\n" + state
	if sum, ok := e.sums.Load(key); ok {
		text, _ := sum.(string) // nothing else is in it
		return text, nil
	}
	sum, err := dirhash.HashDir(dir, "", dirhash.Hash1)
	if err == nil {
		e.sums.Store(key, sum)
	}
	return sum, err
}

// fileStates tells files that were changed from those that were not.
func fileStates(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %d %s %s\n", name, info.Size(), info.Mode(), info.ModTime().UTC().Format(time.RFC3339Nano))
		return nil
	})
	return b.String(), err
}

// tail keeps the end of what a provider writes to stderr.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailSize is how much is kept.
const tailSize = 64 << 10

// Write implements io.Writer.
func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(text), nil
}

// panic returns what a Go program says first when it dies, if it does, to be added to a
// sentence.
func (t *tail) panic() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range bytes.Lines(t.text) {
		text := strings.TrimSpace(string(line))
		if strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ") {
			return ": " + text
		}
	}
	return ""
}
