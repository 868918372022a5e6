// Package state runs OpenTofu or Terraform in the root of one Proxmox host: it finds the
// engine, initializes a directory, saves plans, applies exactly the saved plan, and
// recovers from crashes. It does not evaluate plans (see state/guard) and writes no fleet
// files. Start at FindEngine and New.
package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// The defaults of a Config. DefaultWaitDelay exceeds the provider's longest create: an
// engine that is killed earlier does not save the state.
const (
	DefaultParallelism = 16
	DefaultWaitDelay   = 35 * time.Minute
	DefaultLockTimeout = 30 * time.Second
)

// Config configures a workspace. Dir and Engine are required.
type Config struct {
	// Dir is the directory of one root, with its .tf files.
	Dir    string
	Engine *Engine
	// Root and Files, if set, are all that the engine may read: Files by their
	// slash-separated paths relative to Root, which must contain Dir. Before each
	// command, anything that differs is replaced. Root must exist; Dir need not.
	Root  string
	Files map[string][]byte
	// Errored is the file for a state that the backend did not accept. The state moves
	// there as soon as it is found, because Dir may be lost. Empty leaves it in Dir.
	Errored string
	// Env holds the provider's variables in addition to the inherited basics, such as
	// PROXMOX_VE_API_TOKEN. The backend's variables go to the engine instead. Values of
	// names like *TOKEN are never shown.
	Env map[string]string
	// PluginDir is a filesystem mirror of providers; empty means the registry, or the
	// user's CLI configuration.
	PluginDir string
	// Providers decides which providers may run; nil neither records nor copies any.
	Providers *Providers
	// BackendConfig completes the backend block. It is stored in the directory in clear
	// text: credentials belong in Env.
	BackendConfig map[string]string
	// Encryption makes OpenTofu encrypt states as configured in the variable
	// TF_ENCRYPTION.
	Encryption bool
	// Parallelism is the minimum number of concurrent resource operations; an apply uses
	// at least its number of creates.
	Parallelism int
	// WaitDelay is how long a canceled engine may continue before it is killed.
	WaitDelay time.Duration
	// LockTimeout is how long to wait for the state's lock.
	LockTimeout time.Duration
	// Gone reports whether every engine that used a state on a host, as named in a lock,
	// is dead, and by which proof; nil means unknown. It is called for locks that no run
	// of this directory left behind, and for this host only if no other numaform's engine
	// was found on it.
	Gone func(ctx context.Context, host string) (proof string, gone bool)
	// Progress receives the events of an apply, from one goroutine.
	Progress func(Event)
	// Log receives the engine's output, without secrets.
	Log io.Writer
	// Clock defaults to the real clock.
	Clock clock.WithTicker
}

func (c *Config) validate() error {
	if c.Dir == "" {
		return errors.New("no directory: name the directory of one host's fleet files")
	}
	if c.Engine == nil || c.Engine.Path == "" {
		return errors.New("no engine: find one by FindEngine")
	}
	if prohibited := tfexec.ProhibitedEnv(c.Env); len(prohibited) > 0 {
		return fmt.Errorf("variable %s must not be set for the engine: it would change what is planned", prohibited[0])
	}
	return nil
}

// Workspace is the directory and the state of one Proxmox host. Only one process can use
// it at a time, and only one operation runs at a time; further calls wait. Close it after
// use.
type Workspace struct {
	config Config
	hidden redactor

	// mu serializes operations; it guards everything below.
	mu     sync.Mutex
	lock   *os.File
	client *tfexec.Terraform
	// env holds the environments of the engine, the provider and a download.
	env   environments
	plans int
	// begun is when the operation that takes the state's lock began.
	begun time.Time
	// unconfined is why the engine can read every file, or "".
	unconfined string
	// version is the version of the provider that the files require, or "".
	version string
	// served is the running provider.
	served *served
	// crashed is the record of a process that died here during an operation.
	crashed *run
	// outside are writes that no plan contains, until a Recovery returns them.
	outside []string
	// imports are the import blocks in the directory during a plan.
	imports []byte
}

// New returns the workspace of a directory. It does no I/O.
func New(config Config) (*Workspace, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("opening workspace %s: %w", config.Dir, err)
	}
	if config.Parallelism <= 0 {
		config.Parallelism = DefaultParallelism
	}
	if config.WaitDelay <= 0 {
		config.WaitDelay = DefaultWaitDelay
	}
	if config.LockTimeout <= 0 {
		config.LockTimeout = DefaultLockTimeout
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
	dir, err := filepath.Abs(config.Dir)
	if err != nil {
		return nil, fmt.Errorf("opening workspace %s: %w", config.Dir, err)
	}
	config.Dir = dir
	if err := config.setRoot(); err != nil {
		return nil, fmt.Errorf("opening workspace %s: %w", config.Dir, err)
	}
	config.BackendConfig = withoutDefault(&config)
	if err := checkEncryption(&config, cmp.Or(config.Env[encryptionVariable], os.Getenv(encryptionVariable)) != ""); err != nil {
		return nil, fmt.Errorf("opening workspace %s: %w", config.Dir, err)
	}
	return &Workspace{config: config, hidden: redactorOf(os.Environ(), &config)}, nil
}

// setRoot makes Root absolute. It must contain Dir.
func (c *Config) setRoot() (err error) {
	if c.Files == nil {
		return nil
	}
	if c.Root, err = filepath.Abs(c.Root); err != nil {
		return err
	}
	if below, err := filepath.Rel(c.Root, c.Dir); err != nil || !filepath.IsLocal(below) {
		return fmt.Errorf("it does not lie in %s", c.Root)
	}
	return nil
}

// Dir returns the workspace's directory, absolute.
func (w *Workspace) Dir() string { return w.config.Dir }

// private returns a path in the part of the directory that only this package uses. Every
// .gitignore for Terraform excludes that part.
func (w *Workspace) private(elements ...string) string {
	return filepath.Join(append([]string{w.config.Dir, ".terraform", "numaform"}, elements...)...)
}

// Close removes saved plans, which contain the state in clear text, and unlocks the
// directory. Plans of this workspace cannot be applied afterwards.
func (w *Workspace) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lock == nil {
		return nil
	}
	w.dismiss()
	if w.client != nil {
		w.config.Engine.keep(w.config.Dir, w.client)
	}
	// A child process that was just forked may also have the file open.
	unlocked := unix.Flock(int(w.lock.Fd()), unix.LOCK_UN)
	err := errors.Join(os.RemoveAll(w.private(plansDir)), unlocked, w.lock.Close())
	w.lock, w.client = nil, nil
	if err != nil {
		return fmt.Errorf("closing workspace %s: %w", w.config.Dir, err)
	}
	return nil
}
