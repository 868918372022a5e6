// Package state runs OpenTofu or Terraform in the root of one Proxmox host: it finds the
// engine, initializes a directory, saves plans, applies exactly the saved plan, and
// recovers from crashes. It does not evaluate plans (see state/guard) and writes no fleet
// files. Start at FindEngine and New.
package state

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/generator"
)

// The defaults of a Config. DefaultWaitDelay exceeds the provider's longest create: an
// engine that is killed earlier does not save the state.
const (
	defaultParallelism = 16
	DefaultWaitDelay   = 35 * time.Minute
	defaultLockTimeout = 30 * time.Second
)

// Config configures a workspace. Dir and Engine are required.
type Config struct {
	// Dir is the directory of one root, with its .tf files.
	Dir    string
	Engine *Engine
	// Root and Files, if set, define the only configuration that the engine reads, in
	// addition to a plan's own files. Files contains each file by its slash-separated path
	// relative to Root, which must contain Dir. Before each command, exactly these files
	// are restored. Root must exist; Dir need not.
	Root  string
	Files map[string][]byte
	// Errored is the file for a state that the backend did not accept. The state moves
	// there as soon as it is found, because Dir can be lost. Empty leaves it in Dir.
	Errored string
	// Env holds the provider's variables in addition to the inherited basics, such as
	// PROXMOX_VE_API_TOKEN. The backend's variables go to the engine instead. Values of
	// variables with names like *TOKEN are hidden in the output.
	Env map[string]string
	// PluginDir is a filesystem mirror of providers; empty means the registry, or the
	// user's CLI configuration.
	PluginDir string
	// Providers decides which providers may run. If it is nil, every provider may run that
	// other users cannot replace, and none is recorded.
	Providers *Providers
	// BackendConfig completes the backend block. It is stored in the directory in clear
	// text: credentials belong in Env.
	BackendConfig map[string]string
	// Kubeconfig logs the engine in to the API server with the states, if the backend is
	// kubernetes. Without it, the backend's own variables and settings do.
	Kubeconfig Kubeconfig
	// Encryption makes OpenTofu encrypt states as configured in the variable
	// TF_ENCRYPTION.
	Encryption bool
	// Parallelism limits the number of concurrent resource operations; 0 means 16. An apply
	// allows at least as many as it has creates.
	Parallelism int
	// WaitDelay is how long a canceled engine may continue before it is killed; 0 means
	// DefaultWaitDelay.
	WaitDelay time.Duration
	// LockTimeout is how long to wait for the state's lock; 0 means 30 seconds.
	LockTimeout time.Duration
	// Gone reports whether every engine on the host that a lock names is dead, and returns
	// the proof. If Gone is nil, this is unknown. It is called for locks that no run of
	// this directory left behind, and for this host only if no engine of another numaform
	// was found on it.
	Gone func(ctx context.Context, host string) (proof string, gone bool)
	// UnlockCommand is the command with which an operator releases the state's lock,
	// without the lock's ID, for messages. Empty omits it.
	UnlockCommand string
	// Progress receives the events of an apply, and of broken locks, one at a time.
	Progress func(Event)
	// Log receives the engine's output, without secrets.
	Log io.Writer
	// Clock defaults to the real clock.
	Clock clock.WithTicker
}

// Kubeconfig is a login to one Kubernetes API server.
type Kubeconfig struct {
	// Content is a kubeconfig with one context only: the engine can read all of it.
	Content []byte
	// Server is the URL of the API server.
	Server string
}

// Workspace is the directory and the state of one Proxmox host. Only one process can use
// it at a time, and only one operation runs at a time; further calls wait. Close it after
// use.
type Workspace struct {
	config Config
	hidden *strings.Replacer // of secrets in the engine's output

	// mu serializes operations; it guards everything below.
	mu     sync.Mutex
	lock   *os.File
	client *tfexec.Terraform
	// env holds the environments of the engine, the provider and a download.
	env   environments
	plans int
	// begun is when the operation that takes the state's lock began.
	begun time.Time
	// unconfined is the reason why the engine is not confined to its own files, or "".
	unconfined string
	// root is the configuration in the directory's files, as last read.
	root *configuration
	// provider is the running provider, or nil.
	provider *process
	// crashed is the record of an operation here that did not end normally, or nil.
	crashed *run
	// outside are writes that no plan contains, until a Recovery returns them.
	outside []string
	// files are the files of the latest plan, and imports the import blocks that are in the
	// directory while a plan is made.
	files   map[string][]byte
	imports []byte
}

// New returns the workspace of a directory. It does no I/O.
func New(config Config) (*Workspace, error) {
	failed := func(err error) (*Workspace, error) {
		return nil, fmt.Errorf("opening workspace %s: %w", config.Dir, err)
	}
	if config.Dir == "" {
		return failed(errors.New("no Config.Dir: set it to the directory with the fleet files of one host"))
	}
	if config.Engine == nil || config.Engine.Path == "" {
		return failed(errors.New("no Config.Engine: find one with FindEngine"))
	}
	if prohibited := tfexec.ProhibitedEnv(config.Env); len(prohibited) > 0 {
		return failed(fmt.Errorf("variable %s must not be set for the engine, because it would change the plan: unset it", prohibited[0]))
	}
	if config.Parallelism <= 0 {
		config.Parallelism = defaultParallelism
	}
	if config.WaitDelay <= 0 {
		config.WaitDelay = DefaultWaitDelay
	}
	if config.LockTimeout <= 0 {
		config.LockTimeout = defaultLockTimeout
	}
	if config.Progress == nil {
		config.Progress = func(Event) {}
	}
	if config.Log == nil {
		config.Log = io.Discard
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}

	var err error
	if config.Dir, err = filepath.Abs(config.Dir); err != nil {
		return failed(err)
	}
	if config.Files != nil {
		if config.Root, err = filepath.Abs(config.Root); err != nil {
			return failed(err)
		}
		if below, err := filepath.Rel(config.Root, config.Dir); err != nil || !filepath.IsLocal(below) {
			return failed(fmt.Errorf("must be inside %s", config.Root))
		}
	}
	if path := config.BackendConfig["path"]; path != "" && filepath.Clean(path) == filepath.Join(config.Dir, "terraform.tfstate") {
		// Given its own default path for a local state in a new directory, the engine
		// treats the file as a state to migrate, and empties it.
		config.BackendConfig = maps.Clone(config.BackendConfig)
		delete(config.BackendConfig, "path")
	}
	if err := checkEncryption(&config, cmp.Or(config.Env[encryptionVariable], os.Getenv(encryptionVariable)) != ""); err != nil {
		return failed(err)
	}
	return &Workspace{config: config, hidden: redactorOf(os.Environ(), &config)}, nil
}

// Dir returns the workspace's directory, absolute.
func (w *Workspace) Dir() string { return w.config.Dir }

// private returns a path in the part of the directory that only this package uses. The
// usual .gitignore for Terraform excludes that part.
func (w *Workspace) private(elements ...string) string {
	return filepath.Join(append([]string{w.config.Dir, ".terraform", "numaform"}, elements...)...)
}

const (
	plansDir     = "plans"
	temporaryDir = "tmp"
	stampFile    = "init"
	runFile      = "run.json"
	lockFile     = "lock"
	// pushFile exists while a state is pushed, and a directory whose name begins with
	// decryptDir while a state is decrypted. Both contain the state in clear text.
	pushFile   = "push.tfstate"
	decryptDir = "decrypt-"
	// kubeconfigFile exists while the workspace is open.
	kubeconfigFile = "kubeconfig"
)

// logsIn reports whether the engine logs in to its backend with Config.Kubeconfig.
func (w *Workspace) logsIn() bool {
	return w.root.backend == "kubernetes" && len(w.config.Kubeconfig.Content) > 0
}

// open locks the directory for this process, cleans up after a process that died in it, and
// prepares the engine's environment. In an open workspace it only restores the files. The
// caller holds mu.
func (w *Workspace) open(ctx context.Context) (err error) {
	if w.client != nil {
		return w.restore()
	}
	if w.lock == nil {
		err = w.occupy()
	}
	// The files determine which backend's variables the engine gets.
	if err == nil {
		err = w.restore()
	}
	if err == nil {
		w.root, err = readConfiguration(w.config.Dir)
	}
	if err != nil {
		return fmt.Errorf("opening workspace %s: %w", w.config.Dir, err)
	}
	w.env = environmentsOf(os.Environ(), &w.config, w.root.backend, markOf(w.config.Dir))
	w.env.engine["TMPDIR"] = w.private(temporaryDir)
	if w.logsIn() {
		w.env.engine["KUBE_CONFIG_PATH"] = w.private(kubeconfigFile)
		if err := os.WriteFile(w.private(kubeconfigFile), w.config.Kubeconfig.Content, 0o600); err != nil {
			return fmt.Errorf("opening workspace %s: %w", w.config.Dir, err)
		}
	}
	w.client, err = w.config.Engine.client(ctx, w.config.Dir, func(client *tfexec.Terraform) error {
		w.client = client
		return errors.Join(client.SetEnv(w.env.engine), w.restrict(), client.SetWaitDelay(w.config.WaitDelay))
	})
	if err != nil {
		w.client = nil
		return w.failure(ctx, "starting the engine in", err)
	}
	return nil
}

// occupy creates the private directory, locks it against other processes, and removes the
// files that a dead process left behind.
func (w *Workspace) occupy() (err error) {
	if err := w.makeDir(); err != nil {
		return err
	}
	if _, err := os.Stat(w.config.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(w.private(), 0o700); err != nil {
		return err
	}
	if err := os.Chmod(w.private(), 0o700); err != nil { //nolint:gosec // a directory needs its x bit
		return err
	}
	lock, err := os.OpenFile(w.private(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return ErrBusy
	}

	if w.crashed, err = readRun(w.private(runFile)); err != nil {
		return err
	}
	if err := errors.Join(removeFile(filepath.Join(w.config.Dir, generator.ImportFile)), removeFile(w.private(kubeconfigFile))); err != nil {
		return err
	}
	entries, err := os.ReadDir(w.private())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); name == pushFile || strings.HasPrefix(name, decryptDir) {
			if err := os.RemoveAll(w.private(name)); err != nil {
				return err
			}
		}
	}
	for _, dir := range []string{plansDir, temporaryDir} {
		if err := errors.Join(os.RemoveAll(w.private(dir)), os.Mkdir(w.private(dir), 0o700)); err != nil {
			return err
		}
	}
	w.lock = lock
	return nil
}

// removeFile removes a file if it exists.
func removeFile(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close removes saved plans, which contain the state in clear text, and the login to the
// backend, and unlocks the directory. Plans of this workspace cannot be applied afterwards.
func (w *Workspace) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lock == nil {
		return nil
	}
	w.dismiss()
	if w.client != nil {
		w.config.Engine.release(w.config.Dir, w.client)
	}
	// Closing the file does not unlock it if a child process that was just forked also has
	// it open.
	unlocked := unix.Flock(int(w.lock.Fd()), unix.LOCK_UN)
	err := errors.Join(os.RemoveAll(w.private(plansDir)), removeFile(w.private(kubeconfigFile)), unlocked, w.lock.Close())
	w.lock, w.client = nil, nil
	if err != nil {
		return fmt.Errorf("closing workspace %s: %w", w.config.Dir, err)
	}
	return nil
}

// output is the output of a command. errors are the errors in a machine-readable stdout.
type output struct {
	stdout, stderr bytes.Buffer
	errors         []string
}

// said returns the errors and the trimmed stderr.
func (o *output) said() string {
	return strings.TrimSpace(strings.Join(append(o.errors, o.stderr.String()), "\n"))
}

// provided runs a command that needs the provider, and returns its output.
func (w *Workspace) provided(ctx context.Context, operation string, run func(*tfexec.Terraform, *tfexec.ReattachOption) error) (*output, error) {
	at, err := w.reattach(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", operation, w.config.Dir, err)
	}
	return w.quiet(ctx, operation, func(tf *tfexec.Terraform) error { return run(tf, at) })
}

// quiet runs a command of the engine and returns its output, which does not go to the log.
func (w *Workspace) quiet(ctx context.Context, operation string, run func(*tfexec.Terraform) error) (*output, error) {
	o := &output{}
	return o, w.run(ctx, operation, o, &o.stdout, run)
}

// command runs a command of the engine whose output goes to the log.
func (w *Workspace) command(ctx context.Context, operation string, run func(*tfexec.Terraform) error) error {
	return w.run(ctx, operation, &output{}, redactingWriter{w.hidden, w.config.Log}, run)
}

// run runs one command of the engine and converts its error. Its stderr goes to the log
// and to o.
func (w *Workspace) run(ctx context.Context, operation string, o *output, stdout io.Writer, run func(*tfexec.Terraform) error) error {
	if err := w.restore(); err != nil {
		return err
	}
	w.client.SetStderr(io.MultiWriter(&o.stderr, redactingWriter{w.hidden, w.config.Log}))
	w.client.SetStdout(stdout)
	if err := run(w.client); err != nil {
		return w.failure(ctx, operation, err, o.said())
	}
	return nil
}
