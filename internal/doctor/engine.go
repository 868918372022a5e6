package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/confine"
	"github.com/numaform/numaform/internal/scratch"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
)

// patience limits the duration of the provider's download.
const patience = 5 * time.Minute

// engine checks OpenTofu or Terraform, and the provider.
func (e *examination) engine(ctx context.Context) {
	engine, err := state.FindEngine(ctx, e.config.Engine)
	if err != nil {
		e.failed("engine", "", err)
	} else {
		e.ok("engine", "", engine.String())
	}
	e.confinement()
	switch {
	case e.config.PluginDir != "":
		e.mirror(e.config.PluginDir)
	case err != nil:
		e.skip("engine", "provider")
	default:
		e.registry(ctx, engine)
	}
}

// confinement reports how engine and provider are restricted to their own files.
func (e *examination) confinement() {
	if version := confine.Version(); version > 0 {
		e.ok("confinement", "", fmt.Sprintf("the kernel has Landlock, version %d: engine and provider see their own files only", version))
		return
	}
	e.add(Finding{
		Check: "confinement", Status: Warn,
		What: "the kernel has no Landlock: engine and provider can read what numaform's user can; " +
			"they run what numaform rendered and trusts by its hash only, with the variables that they need",
		Mend: "run numaform as a user of its own, on Linux 5.13 or newer with landlock among the kernel's lsm= modules",
	})
}

// mirror checks for the provider in a filesystem mirror, unpacked or packed.
func (e *examination) mirror(dir string) {
	name := filepath.Join(dir, filepath.FromSlash(guard.Provider))
	platform := runtime.GOOS + "_" + runtime.GOARCH
	packed := fmt.Sprintf("terraform-provider-proxmox_%s_%s.zip", generator.ProviderVersion, platform)
	for _, path := range []string{filepath.Join(name, generator.ProviderVersion, platform), filepath.Join(name, packed)} {
		if _, err := os.Stat(path); err == nil {
			e.ok("provider", dir, guard.Provider+" "+generator.ProviderVersion)
			return
		}
	}
	have := "nothing of it is there"
	if entries, err := os.ReadDir(name); err == nil && len(entries) > 0 {
		have = "there is " + strings.Join(names(entries), ", ")
	}
	e.add(Finding{
		Check: "provider", Status: Fail, Where: dir,
		What: fmt.Sprintf("engine.plugin_dir lacks %s %s for %s: %s", guard.Provider, generator.ProviderVersion, platform, have),
		Mend: fmt.Sprintf("put it there as %s (`make provider` builds one), or take engine.plugin_dir out to use the registry",
			filepath.Join(guard.Provider, generator.ProviderVersion, platform)),
	})
}

func names(entries []os.DirEntry) []string {
	var list []string
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	slices.Sort(list)
	return list
}

// registry makes the engine fetch the provider as it would for a first plan.
func (e *examination) registry(ctx context.Context, engine *state.Engine) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := fetch(ctx, engine); err != nil {
		finding := Finding{Check: "provider", Status: Fail, Where: "the registry", What: strings.Join(strings.Fields(err.Error()), " ")}
		if !strings.Contains(finding.What, "engine.plugin_dir") { // otherwise the error has the hint
			finding.Mend = "let this machine reach the registry, or set engine.plugin_dir to a mirror that holds the provider (`make provider` builds one)"
		}
		e.add(finding)
		return
	}
	e.ok("provider", "the registry", guard.Provider+" "+generator.ProviderVersion)
}

// fetch initializes a root without VMs in a temporary directory.
func fetch(ctx context.Context, engine *state.Engine) (err error) {
	temporary, err := scratch.New("doctor")
	if err != nil {
		return fmt.Errorf("trying the provider: %w", err)
	}
	dir := filepath.Join(temporary.Path(), "fleet")
	defer func() { _ = temporary.Remove() }()
	shard := fleet.Shard{Region: "doctor", Host: "doctor"}
	files, err := generator.Current().Render(fleet.Fleet{
		ClusterID: "doctor", Backend: fleet.Backend{Type: "local"}, Hosts: []fleet.Shard{shard},
		Regions: []fleet.Region{{Name: shard.Region, Endpoint: "https://doctor.invalid/"}},
	})
	if err != nil {
		return fmt.Errorf("trying the provider: %w", err)
	}
	if err := store.NewDirectory(dir).Write(files); err != nil {
		return err
	}
	workspace, err := state.New(state.Config{
		Dir: filepath.Join(dir, filepath.FromSlash(generator.ShardDir(shard))), Engine: engine,
		Providers: &state.Providers{Record: filepath.Join(dir, "providers.json"), Dir: filepath.Join(dir, "providers")},
	})
	if err != nil {
		return err
	}
	defer func() { _ = workspace.Close() }()
	return workspace.Provide(ctx)
}
