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

// An engine command starts its provider up to three times, and a change runs three
// commands. So this package starts the provider once, by its hash and with an environment
// of its own, and passes its address to the commands. The engine has no provider that it
// could start itself. The provider ends with the workspace, with the first command that
// fails, and with this process. The engine's variable for this, TF_REATTACH_PROVIDERS, is
// intended for providers under a debugger.

// startTimeout limits how long a provider may take until it listens.
const startTimeout = time.Minute

// socketRoom is the part of a socket path, at most 107 bytes long, that is reserved for
// what follows the directory for temporary files.
const socketRoom = 60

// served is a workspace's running provider, or none.
type served struct {
	version string
	// provider is nil if the files require none.
	provider *Provider
	clients  []*plugin.Client
	info     tfexec.ReattachInfo
	said     *tail
	// sockets is the directory of its socket.
	sockets *scratch.Dir
}

// reattach returns the address of this workspace's provider for the engine, and starts
// the provider if it is not running.
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
	// It must outlive ctx: a canceled engine shuts the provider down in an orderly way.
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
	// It would write traces that are never read.
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
		// This makes the engine leave the provider running.
		Test: true,
		Addr: tfexec.ReattachConfigAddr{Network: address.Network(), String: address.String()},
	}
	return nil
}

// dismiss ends the providers. A provider that is handling a call gets two seconds.
func (w *Workspace) dismiss() {
	if w.served == nil {
		return
	}
	for _, client := range w.served.clients {
		client.Kill()
	}
	if w.served.sockets != nil {
		_ = w.served.sockets.Remove() // the next process that needs one removes it
	}
	w.served = nil
}

// dismissWhenLost ends the providers as soon as ctx is canceled with cause ErrHostLost:
// they ignore the engine's request to stop, and wait for the host. The engine treats
// their calls as failed and ends in an orderly way. Call stop when it has ended.
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

// fallen ends the providers after a failed command, and returns why one of them died, if
// one did.
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

// died reports whether a provider has stopped listening. Its exit may not have been
// noticed yet.
func (s *served) died() bool {
	for _, config := range s.info {
		connection, err := net.DialTimeout(config.Addr.Network, config.Addr.String, startTimeout)
		if err != nil {
			return true
		}
		_ = connection.Close() // it was only a probe
	}
	return false
}

// sum returns the hash of a provider's files, as in lock files. It recomputes the hash
// only if a file has changed. file stores the last hash between processes, because
// computing it takes 2 % of a plan's CPU time; with "", it is not stored.
func (e *Engine) sum(dir, file string, now time.Time) (string, error) {
	state, newest, err := fileStates(dir)
	if err != nil {
		return "", err
	}
	if sum, ok := e.sums.Load(state); ok {
		text, _ := sum.(string) // sums contains nothing else
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

	// A recently written file may change again without a new modification time.
	if file != "" && now.Sub(newest) > 2*time.Second {
		if content, err = json.Marshal(keptSum{Files: state, Hash: sum}); err == nil {
			_ = renameio.WriteFile(file, content, 0o600) // the next process recomputes it
		}
	}
	return sum, nil
}

// keptSum is the hash of a provider's files, with the file states that it was computed
// for.
type keptSum struct {
	Files string `json:"files"`
	Hash  string `json:"hash"`
}

// fileStates returns a text that changes if a file changes, and the time of the last
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
		// The owner can reset a file's mtime, but not its ctime.
		fmt.Fprintf(&b, "%s %d %s %d %d %v %v\n", name, info.Size(), info.Mode(), stat.Dev, stat.Ino, stat.Mtim, stat.Ctim)
		if changed := time.Unix(stat.Ctim.Unix()); changed.After(newest) {
			newest = changed
		}
		return nil
	})
	return b.String(), newest, err
}

// tail keeps the last part of a provider's stderr.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailSize is the number of bytes kept.
const tailSize = 64 << 10

// Write implements io.Writer.
func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(text), nil
}

// panic returns the first line of a Go program's panic, in a form to append to a
// sentence, or "".
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
