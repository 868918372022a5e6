package state

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/terraform-exec/tfexec"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/scratch"
)

// A command of the engine starts its provider up to three times, and a change runs
// three commands. So the provider is started once here, by its hash and with an
// environment of its own, and the commands are told where it listens. The engine has
// none that it could start. It ends with the workspace, with the first command that
// fails, and with this process. The engine's variable for it, TF_REATTACH_PROVIDERS, is
// meant for providers under a debugger.

// startTimeout is how long a provider may take until it listens.
const startTimeout = time.Minute

// socketRoom is how much of a socket's path, of at most 107 bytes, is what is added to
// the directory for temporary files.
const socketRoom = 60

// served is the provider that runs for a workspace, or none.
type served struct {
	version string
	// provider is nil if the files require none.
	provider *Provider
	clients  []*plugin.Client
	info     tfexec.ReattachInfo
	said     *tail
	// sockets is where it listens, and its directory.
	sockets *scratch.Dir
}

// reattach returns where the engine finds the provider of this workspace, and starts it
// if it does not run.
func (w *Workspace) reattach(ctx context.Context) (*tfexec.ReattachOption, error) {
	if w.served == nil || w.served.version != w.version || w.served.died() {
		w.dismiss()
		w.served = &served{version: w.version, info: tfexec.ReattachInfo{}, said: &tail{}}
		if w.version != "" {
			if err := w.start(ctx); err != nil {
				w.dismiss()
				return nil, err
			}
		}
	}
	return tfexec.Reattach(w.served.info), nil
}

// Provide starts the provider that the files require, as a plan would.
func (w *Workspace) Provide(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	_, err := w.reattach(ctx)
	return err
}

// start starts the provider.
func (w *Workspace) start(ctx context.Context) error {
	binary, provider, err := w.program(ctx)
	if err != nil {
		return err
	}
	if w.served.sockets, err = scratch.NewShort("provider", 107-socketRoom); err != nil {
		return err
	}
	// It must outlive ctx: a canceled engine ends it in good order.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), cmp.Or(w.config.Engine.Helper, binary)) //nolint:gosec // its hash is trusted
	sockets := w.served.sockets.Path()
	cmd.Dir, cmd.SysProcAttr = sockets, mortal()
	env := maps.Clone(w.env.provider)
	env["TMPDIR"] = sockets
	if w.config.Engine.Helper != "" {
		env = confined(env, providerRules(binary, sockets, env))
	}
	for name, value := range env {
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
		Cmd:              cmd, SkipHostEnv: true, UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: sockets},
		StartTimeout: startTimeout, Stderr: w.served.said, Logger: hclog.NewNullLogger(),
	})
	address, err := client.Start()
	if err != nil {
		client.Kill()
		return fmt.Errorf("starting provider %s: %s%s", binary, w.hidden.hide(err.Error()), w.hidden.hide(w.served.said.panic()))
	}
	w.served.clients, w.served.provider = append(w.served.clients, client), provider
	w.served.info[provider.Address] = tfexec.ReattachConfig{
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

// sum returns the hash of a provider's files, as lock files have it. It is computed again
// only if one of them changed. File keeps the last hash between processes, since a plan
// spends 2 % of its CPU time on it; without one, none is kept.
func (e *Engine) sum(dir, file string, now time.Time) (string, error) {
	state, newest, err := fileStates(dir)
	if err != nil {
		return "", err
	}
	if sum, ok := e.sums.Load(state); ok {
		text, _ := sum.(string) // nothing else is in it
		return text, nil
	}
	var kept keptSum
	content, err := os.ReadFile(file)
	if err == nil && json.Unmarshal(content, &kept) == nil && kept.Files == state {
		e.sums.Store(state, kept.Hash)
		return kept.Hash, nil
	}
	sum, err := dirhash.HashDir(dir, "", dirhash.Hash1)
	if err != nil {
		return "", err
	}
	e.sums.Store(state, sum)

	// A file that was just written may change once more without another time.
	if file != "" && now.Sub(newest) > 2*time.Second {
		if content, err = json.Marshal(keptSum{Files: state, Hash: sum}); err == nil {
			_ = renameio.WriteFile(file, content, 0o600) // the next process computes it again
		}
	}
	return sum, nil
}

// keptSum is the hash of a provider's files, and what tells whether they changed.
type keptSum struct {
	Files string `json:"files"`
	Hash  string `json:"hash"`
}

// fileStates returns a text that differs if a file was changed, and the time of the last
// change.
func fileStates(dir string) (text string, newest time.Time, err error) {
	var b strings.Builder
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(name, &stat); err != nil {
			return err
		}
		// Its owner can set the time of the last change to the content back, not that of
		// the last change at all.
		fmt.Fprintf(&b, "%s %d %s %d %d %v %v\n", name, info.Size(), info.Mode(), stat.Dev, stat.Ino, stat.Mtim, stat.Ctim)
		if changed := time.Unix(stat.Ctim.Unix()); changed.After(newest) {
			newest = changed
		}
		return nil
	})
	return b.String(), newest, err
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
