package state

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
)

// Internals for tests of cases that no engine produces.
var (
	ParseLock  = parseLock
	ParseState = parseState
	MadeFrom   = madeFrom
)

// Required returns the version of the provider that files require.
func Required(files map[string][]byte) (string, error) {
	c := parseConfiguration(files)
	return c.version, c.refused
}

// Fence is a fence in front of a PostgreSQL server.
type Fence struct{ *fence }

// OpenFence opens a fence for the server of a connection string.
func OpenFence(text string) (Fence, error) {
	return OpenFenceOn(text, func(l net.Listener) net.Listener { return l })
}

// OpenFenceOn is like OpenFence, but replaces the fence's listener with the result of
// listener.
func OpenFenceOn(text string, listener func(net.Listener) net.Listener) (Fence, error) {
	c, _ := parseConn(text, nil)
	f, err := listen(c.target())
	if err == nil {
		f.listener = listener(f.listener)
		f.open.Go(f.accept)
	}
	return Fence{f}, err
}

// Admitted waits until the fence has admitted count connections.
func (f Fence) Admitted(count int) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for admitted := 0; admitted < count; <-tick.C {
		f.mu.Lock()
		admitted = len(f.conns)
		f.mu.Unlock()
	}
}

// Address returns the fence's address.
func (f Fence) Address() (host, port string) { return f.address() }

// Close closes the fence and returns the reason why it blocked connections, or nil.
func (f Fence) Close() (broken, err error) { return f.close() }

// Led returns the address of a connection string's server, and the string with another
// address. All results are "" if the connection must not be redirected.
func Led(text string, env map[string]string) (network, address, elsewhere string) {
	c, ok := parseConn(text, env)
	if !ok {
		return "", "", ""
	}
	return c.target().network, c.target().address, c.at("127.0.0.1", "99")
}

// Environments returns the environments of the engine, the provider and a download.
func Environments(own []string, c *Config, backend string) (engine, provider, download map[string]string) {
	e := environmentsOf(own, c, backend, "mark")
	return e.engine, e.provider, e.download
}

// Cluster returns the environment entry that names the cluster of a workspace's state.
func (w *Workspace) Cluster() string { return clusterVariable + "=" + w.env.engine[clusterVariable] }

// Mark returns the environment entry that marks a workspace's processes.
func (w *Workspace) Mark() string { return runVariable + "=" + markOf(w.config.Dir) }

// Hide removes env's secrets from s.
func Hide(env map[string]string, s string) string { return newRedactor(env).Replace(s) }

// HideAll removes from s the secrets in an environment and a configuration.
func HideAll(own []string, c *Config, s string) string { return redactorOf(own, c).Replace(s) }

// Held reports whether the record of a run on a host between two times proves, on the host
// here, that the holder of a lock is gone.
func Held(host string, began, until time.Time, lock *LockedError, here string) bool {
	return (&run{Host: host, Began: began, Until: until}).proves(lock, here, "")
}

// Proves reports whether the record of a run in dir on host proves, for the directory here
// on the same host, that the holder of a lock is gone.
func Proves(dir, host string, began time.Time, lock *LockedError, here string) bool {
	return (&run{Host: host, Dir: dir, Began: began, Until: began.Add(time.Minute)}).proves(lock, host, here)
}

// Complete completes an engine's description of a lock, for a directory with the given
// files and an operation that began at the given time.
func Complete(lock *LockedError, dir string, files map[string][]byte, began time.Time) {
	w := &Workspace{config: Config{Dir: dir}, root: parseConfiguration(files), begun: began}
	w.complete(lock)
}

// Gone reports whether the holder of a lock is dead.
func (w *Workspace) Gone(ctx context.Context, lock *LockedError) bool { return w.gone(ctx, lock) }

// AddCalls adds module calls to a directory's list, and reports whether it could.
func AddCalls(dir string, files map[string][]byte) bool {
	return (&Workspace{config: Config{Dir: dir}}).addCalls(parseConfiguration(files))
}

// AddressIn parses the line in which a provider reports its address.
func AddressIn(line string) (tfexec.ReattachConfig, error) { return addressIn(line) }

// AwaitOrphans waits for the leftover processes of a killed engine.
func (w *Workspace) AwaitOrphans(ctx context.Context) ([]int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.awaitOrphans(ctx)
}

// NeedsProvider reports whether an engine's text is about a missing provider, and returns
// the fix.
func NeedsProvider(pluginDir, text string) (fix string, needed bool) {
	if !noProvider.MatchString(text) {
		return "", false
	}
	return (&Workspace{config: Config{PluginDir: pluginDir, Engine: &Engine{Path: "/opt/tofu"}}}).providerHint(), true
}

// Sum returns the hash of a provider's files.
func (e *Engine) Sum(dir, file string, now time.Time) (string, error) { return hashOf(dir, file, now) }

// Guarded reports whether only root and this user can replace a file.
func Guarded(path string) bool { return guarded(path) }

// Died returns the message about a provider that wrote the texts and died.
func Died(texts ...string) string {
	t := &tail{}
	for _, text := range texts {
		_, _ = t.Write([]byte(text)) // it never fails
	}
	return t.panic()
}

// Sees returns the files that an engine can read, or why it is not confined.
func Sees(c *Config, env map[string]string, files map[string][]byte) (paths []string, open string) {
	s := engineRules(c, env, parseConfiguration(files))
	return append(s.rules.Read, s.rules.Write...), s.open
}

// BehindFence reports whether an engine of the directory reaches PostgreSQL through a
// fence.
func BehindFence(config Config, env map[string]string) bool {
	root, err := readConfiguration(config.Dir)
	if err != nil {
		return false
	}
	w := &Workspace{config: config, env: environments{engine: env}, root: root}
	_, ok := w.connString()
	return ok
}

// CanonicalServer returns the canonical form of an API server's URL.
func CanonicalServer(server string) string { return canonicalServer(server) }
