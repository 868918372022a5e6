// Package state runs OpenTofu or Terraform on the root of one Proxmox host: it
// finds the engine, initializes a directory, saves plans, applies exactly the
// saved plan, and recovers after crashes. It judges nothing, see state/guard, and
// writes no fleet files. Start at FindEngine and New.
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

// The defaults of a Config. DefaultWaitDelay is above the provider's longest
// create: an engine that is killed before saves nothing.
const (
	DefaultParallelism = 16
	DefaultWaitDelay   = 35 * time.Minute
	DefaultLockTimeout = 30 * time.Second
)

// Config says what a workspace works with. Dir and Engine are required.
type Config struct {
	// Dir is the directory of one root, with its .tf files.
	Dir    string
	Engine *Engine
	// Root and Files, if set, are all that the engine may read: Files by their
	// slash-separated paths below Root, in which Dir lies too. What differs from them is
	// replaced before each of its commands. Root exists; Dir need not.
	Root  string
	Files map[string][]byte
	// Errored is where a state is kept that the backend did not take; it goes there as
	// soon as it is found, as Dir may be lost. Empty means that it stays in Dir.
	Errored string
	// Env holds what the provider needs besides the basics that are inherited, such
	// as PROXMOX_VE_API_TOKEN. Variables of the backend go to the engine instead.
	// Values of names like *TOKEN* are never shown.
	Env map[string]string
	// PluginDir is a filesystem mirror of providers; empty means the registry or
	// what the user's CLI configuration says.
	PluginDir string
	// Providers decides which providers may run; nil remembers none and keeps none.
	Providers *Providers
	// BackendConfig completes the backend block. It is stored in the directory in
	// clear: credentials belong into Env.
	BackendConfig map[string]string
	// Encryption lets OpenTofu encrypt states as the variable TF_ENCRYPTION says.
	Encryption bool
	// Parallelism is the least number of resources worked on at once; an apply
	// takes at least the number of its creates.
	Parallelism int
	// WaitDelay is how long a canceled engine may go on before it is killed.
	WaitDelay time.Duration
	// LockTimeout is how long to wait for the state's lock.
	LockTimeout time.Duration
	// Gone reports whether every engine that worked on a state on a host, as a lock
	// names it, is dead, and by which proof; nil means that nobody knows. It is asked
	// about locks that no run of this directory left behind; about this host only if
	// no other numaform's engine was found on it.
	Gone func(ctx context.Context, host string) (proof string, gone bool)
	// Progress receives what happens during an apply, from one goroutine.
	Progress func(Event)
	// Log receives the engine's own words, without secrets.
	Log io.Writer
	// Clock is the real one by default.
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

// Workspace is the directory and the state of one Proxmox host. One process works
// in it at a time, and in it one operation; further calls wait. Close it.
type Workspace struct {
	config Config
	hidden redactor

	// mu makes operations follow each other; it guards everything below.
	mu     sync.Mutex
	lock   *os.File
	client *tfexec.Terraform
	// env is what the engine, the provider and a download see.
	env   environments
	plans int
	// begun is when the operation that takes the state's lock began.
	begun time.Time
	// unconfined is why the engine may see every file, or "".
	unconfined string
	// version is that of the provider which the files require, or "".
	version string
	// served is the provider that runs.
	served *served
	// crashed is what a process left here that died during an operation.
	crashed *run
	// outside are writes that no plan holds, until a Recovery tells them.
	outside []string
	// imports are the import blocks that are in the directory during a plan.
	imports []byte
}

// New returns the workspace of a directory. It touches nothing.
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

// setRoot makes the root of the files absolute. The directory must lie in it.
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

// private returns a path in the part of the directory that only this package
// uses. It lies where every .gitignore of Terraform keeps things out of git.
func (w *Workspace) private(elements ...string) string {
	return filepath.Join(append([]string{w.config.Dir, ".terraform", "numaform"}, elements...)...)
}

// Close removes saved plans, which hold the state in clear, and lets others work
// in the directory. Plans of this workspace cannot be applied afterwards.
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
	// A child of this process that was just forked may have the file open, too.
	unlocked := unix.Flock(int(w.lock.Fd()), unix.LOCK_UN)
	err := errors.Join(os.RemoveAll(w.private(plansDir)), unlocked, w.lock.Close())
	w.lock, w.client = nil, nil
	if err != nil {
		return fmt.Errorf("closing workspace %s: %w", w.config.Dir, err)
	}
	return nil
}
