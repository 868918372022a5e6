package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/cpufreq"
	"github.com/numaform/numaform/internal/plainyaml"
	"github.com/numaform/numaform/topology"
)

// Isolation configures how the agent treats guests that may run on pinned CPUs.
type Isolation string

// The values of Isolation.
const (
	// IsolationOff ignores such guests.
	IsolationOff Isolation = "off"
	// IsolationReport reports such guests.
	IsolationReport Isolation = "report"
	// IsolationEnforce confines such guests to CPUs without pins.
	IsolationEnforce Isolation = "enforce"
)

// Settings are the configuration of the host's administrator. They are in a file that no
// Proxmox token can change.
type Settings struct {
	Clusters         []string        `yaml:"clusters"`
	MaxPinnedPercent int             `yaml:"max_pinned_percent"`
	ReservedCPUs     topology.CPUSet `yaml:"reserved_cpus"`
	Emulator         fleet.Emulator  `yaml:"emulator"`
	Isolation        Isolation       `yaml:"isolation"`
	Governor         Governor        `yaml:"governor"`
	IRQs             Interrupts      `yaml:"irqs"`
	// MetricsDir is the directory of node_exporter's textfile collector. If it does not
	// exist, no metrics are written.
	MetricsDir string `yaml:"metrics_dir"`
}

// DefaultSettings returns the settings of a host without a configuration file: no guest is
// pinned.
func DefaultSettings() Settings {
	return Settings{
		MaxPinnedPercent: 90, Emulator: fleet.EmulatorGuest, Isolation: IsolationReport,
		IRQs: InterruptsOff, MetricsDir: "/var/lib/prometheus/node-exporter",
	}
}

// ReadSettings reads the configuration file, or returns DefaultSettings if the file does not
// exist. It returns an error if users other than the file's owner may write it, because they
// could raise its limits.
func ReadSettings(name string) (Settings, error) {
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return DefaultSettings(), nil
	}
	if err != nil {
		return Settings{}, fmt.Errorf("reading %s: %w", name, err)
	}
	defer func() { _ = file.Close() }()

	const most = 1 << 16
	info, err := file.Stat()
	if err == nil && info.Mode().Perm()&0o022 != 0 {
		err = fmt.Errorf("users other than its owner can write it: run chmod 644 %s", name)
	}
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(file, most+1))
	}
	if err == nil && len(data) > most {
		err = errors.New("it is larger than 64 KiB: shorten it")
	}
	var settings Settings
	if err == nil {
		settings, err = ParseSettings(data)
	}
	if err != nil {
		return Settings{}, fmt.Errorf("reading %s: %w", name, err)
	}
	return settings, nil
}

// ParseSettings reads the file's text. An unknown key is an error that names its line.
func ParseSettings(data []byte) (Settings, error) {
	settings := DefaultSettings()
	if err := plainyaml.Check(data); err != nil {
		return Settings{}, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&settings); err != nil && !errors.Is(err, io.EOF) {
		return Settings{}, explain(err)
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return Settings{}, errors.New("the file has a second document: remove it")
	}
	return settings, settings.check()
}

// unknownKey matches the YAML decoder's message about an unknown key.
var unknownKey = regexp.MustCompile(`field (\S+) not found in type \S+`)

// explain replaces the Go types in an error of the YAML decoder with the valid keys.
func explain(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n  ")
	text = strings.ReplaceAll(text, "\n  ", "; ")
	if unknown := unknownKey.ReplaceAllString(text, "unknown key $1"); unknown != text {
		return fmt.Errorf("%s: valid keys are clusters, max_pinned_percent, reserved_cpus, emulator, isolation, "+
			"governor (with pinned, free and unpinned), irqs and metrics_dir", unknown)
	}
	return errors.New(text)
}

func (s *Settings) check() error {
	for _, id := range s.Clusters {
		if err := fleet.CheckClusterID(id); err != nil {
			return fmt.Errorf("clusters: %w", err)
		}
	}
	if s.MaxPinnedPercent < 1 || s.MaxPinnedPercent > 100 {
		return fmt.Errorf("max_pinned_percent %d: must be from 1 to 100", s.MaxPinnedPercent)
	}
	if !slices.Contains([]fleet.Emulator{fleet.EmulatorGuest, fleet.EmulatorShared}, s.Emulator) {
		return fmt.Errorf("emulator: %q is unknown: set guest or shared", s.Emulator)
	}
	if s.Governor.Pinned == "" && s.Governor.Free != "" {
		return errors.New("governor: free requires pinned: set both, or pinned alone")
	}
	if s.Governor.Unpinned != "" && (s.Governor.Pinned == "" || s.Governor.Free != "") {
		return errors.New("governor: unpinned requires pinned, and replaces free: set pinned and unpinned")
	}
	for _, name := range []string{s.Governor.Pinned, s.Governor.Free, s.Governor.Unpinned} {
		if name == "" {
			continue
		}
		if err := cpufreq.CheckName(name); err != nil {
			return fmt.Errorf("governor: %w", err)
		}
	}
	if s.IRQs != InterruptsOff && s.IRQs != InterruptsGuest {
		return fmt.Errorf("irqs: %q is unknown: set off or guest", string(s.IRQs))
	}
	return s.Isolation.Check()
}

// Check returns an error unless the value is valid. The error lists the valid values.
func (i Isolation) Check() error {
	if !slices.Contains([]Isolation{IsolationOff, IsolationReport, IsolationEnforce}, i) {
		return fmt.Errorf("isolation: %q is unknown: set off, report or enforce", string(i))
	}
	return nil
}
