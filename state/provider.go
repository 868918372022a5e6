package state

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"

	"github.com/numaform/numaform/internal/scratch"
	"github.com/numaform/numaform/state/guard"
)

// An engine command starts its provider up to three times, and a change runs three
// commands. So this package starts the provider once, after checking its hash and with an
// environment of its own, and passes its address to the commands. The engine has no
// provider that it could start itself. The provider ends with the workspace, with the first
// command that fails or is canceled, and, on Linux, with this process.
// TF_REATTACH_PROVIDERS, the engine's variable for the address of a running provider, is
// intended for debugging.

// startTimeout limits how long a provider may take until it listens.
const startTimeout = time.Minute

// socketRoom is the number of bytes in a socket path, of at most 107 bytes, that are
// reserved for the part after the directory for temporary files.
const socketRoom = 60

// process is a running provider.
type process struct {
	// version is the version that the files require.
	version  string
	provider *Provider
	address  tfexec.ReattachConfig
	command  *exec.Cmd
	stderr   *tail
	// sockets is the directory of the provider's socket.
	sockets *scratch.Dir
	// ended is closed when the provider has ended.
	ended chan struct{}
}

// reattach returns the address of this workspace's provider for the engine, and starts
// the provider if it is not running. If the files require no provider, it returns an option
// without an address.
func (w *Workspace) reattach(ctx context.Context) (*tfexec.ReattachOption, error) {
	version := w.root.version
	if p := w.provider; p != nil && (p.version != version || p.died()) {
		w.dismiss()
	}
	if version == "" {
		return tfexec.Reattach(tfexec.ReattachInfo{}), nil
	}
	if w.provider == nil {
		binary, provider, err := w.program(ctx)
		if err != nil {
			return nil, err
		}
		if w.provider, err = w.start(ctx, binary); err != nil {
			return nil, fmt.Errorf("starting provider %s: %w", binary, err)
		}
		w.provider.provider = provider
	}
	return tfexec.Reattach(tfexec.ReattachInfo{guard.Provider: w.provider.address}), nil
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

// start starts a provider's program and waits until it listens.
func (w *Workspace) start(ctx context.Context, binary string) (*process, error) {
	sockets, err := scratch.NewShort("provider", 107-socketRoom)
	if err != nil {
		return nil, err
	}
	env := maps.Clone(w.env.provider)
	env["TMPDIR"] = sockets.Path()
	if w.config.Engine.Helper != "" {
		env = confined(env, providerRules(binary, sockets.Path(), env))
	}
	// The provider must outlive ctx: a canceled engine still needs it to end in an orderly
	// way.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), cmp.Or(w.config.Engine.Helper, binary)) //nolint:gosec // its hash is trusted
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Env = append(
		cmd.Env,
		// The handshake of hashicorp/go-plugin, with the cookie of OpenTofu and Terraform.
		"TF_PLUGIN_MAGIC_COOKIE=d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2", "PLUGIN_PROTOCOL_VERSIONS=5,6",
		// The provider would write traces that are never read.
		"TF_LOG_SDK=off", "TF_LOG_SDK_PROTO=off", "TF_LOG_PROVIDER_PROXMOX=off",
	)
	p := &process{version: w.root.version, command: cmd, stderr: &tail{}, sockets: sockets, ended: make(chan struct{})}
	cmd.Dir, cmd.SysProcAttr, cmd.Stderr = sockets.Path(), mortal(), p.stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, sockets.Remove())
	}

	said := make(chan string, 1)
	go func() {
		defer close(p.ended)
		lines := bufio.NewReader(stdout)
		line, _ := lines.ReadString('\n') // without a line, addressIn fails
		said <- line
		_, _ = io.Copy(io.Discard, lines) // so that the provider is never blocked
		_ = cmd.Wait()                    // how it ended does not matter
	}()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case line := <-said:
		p.address, err = addressIn(line)
	case <-timeout.C:
		err = fmt.Errorf("not listening after %s", startTimeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		p.end()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, errors.New(w.hidden.Replace(err.Error() + p.stderr.panic()))
	}
	p.address.Pid = cmd.Process.Pid
	return p, nil
}

// addressIn parses the line in which a provider reports its address: the version of
// go-plugin's protocol, the version of the provider's protocol, the network, the address
// and the kind of RPC.
func addressIn(line string) (tfexec.ReattachConfig, error) {
	fields := strings.Split(strings.TrimSpace(line), "|")
	if len(fields) < 5 || fields[0] != "1" || fields[2] != "unix" || fields[4] != "grpc" {
		return tfexec.ReattachConfig{}, fmt.Errorf("printed %.200q instead of its address", line)
	}
	version, err := strconv.Atoi(fields[1])
	return tfexec.ReattachConfig{
		Protocol:        fields[4],
		ProtocolVersion: version,
		Test:            true, // the engine leaves the provider running
		Addr:            tfexec.ReattachConfigAddr{Network: fields[2], String: fields[3]},
	}, err
}

// died reports whether the provider has stopped listening. It connects to the provider,
// because this process may not have noticed its end yet.
func (p *process) died() bool {
	connection, err := net.DialTimeout(p.address.Addr.Network, p.address.Addr.String, startTimeout)
	if err != nil {
		return true
	}
	_ = connection.Close() // it was only a probe
	return false
}

// end kills the provider.
func (p *process) end() {
	_ = p.command.Process.Kill() // it may have ended
	<-p.ended
	_ = p.sockets.Remove() // if this fails, the next process removes it
}

// dismiss ends the workspace's provider, if there is one.
func (w *Workspace) dismiss() {
	if w.provider != nil {
		w.provider.end()
		w.provider = nil
	}
}

// tail stores the last part of a provider's stderr.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailSize is the number of bytes that a tail stores.
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
