package fleet

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// markerPrefix begins the marker line; the number is the marker's format version.
const markerPrefix = "numaform/1 "

var (
	// markerPattern is strict because the host agent acts on the marker as root: each
	// number has one spelling, and the fields have one order.
	markerPattern = regexp.MustCompile(
		`^numaform/1 cluster=([a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?) key=([0-9a-f]{32})` +
			`(?: pins=((?:0|[1-9][0-9]{0,4})(?:,(?:0|[1-9][0-9]{0,4}))*)(?: emulator=(guest|shared))?)?$`,
	)
	// anyMarker matches a marker line of any format version.
	anyMarker = regexp.MustCompile(`^numaform/[0-9]`)
)

// Emulator selects the CPUs for a VM's threads that are not vCPUs: the emulator, I/O
// threads and workers.
type Emulator string

// The Emulator settings.
const (
	// EmulatorGuest uses the CPUs that the VM is pinned to.
	EmulatorGuest Emulator = "guest"
	// EmulatorShared uses the CPUs that are neither pinned nor siblings of pinned CPUs.
	EmulatorShared Emulator = "shared"
)

// Marker is the line in a VM's description that identifies its owner, for example
//
//	numaform/1 cluster=prod key=5f1d… pins=4,36,5,37 emulator=shared
type Marker struct {
	ClusterID string
	Key       Key
	// Pins lists the host CPUs of vCPU 0, 1, 2, …; nil if the host agent does not pin the
	// VM.
	Pins []int
	// Emulator is empty if the host's administrator decides. It is set only together with
	// Pins.
	Emulator Emulator
}

// String returns the marker's line without a line break.
func (m Marker) String() string {
	line := fmt.Sprintf("%scluster=%s key=%s", markerPrefix, m.ClusterID, m.Key)
	if len(m.Pins) == 0 {
		return line
	}
	line += " pins=" + topology.Pins(m.Pins).String()
	if m.Emulator != "" {
		line += " emulator=" + string(m.Emulator)
	}
	return line
}

// ParseMarker returns the marker in a VM's description. It returns false if the description
// has no marker, several markers or a malformed one: the VM is then unmanaged.
func ParseMarker(description string) (Marker, bool) {
	marker, found, err := FindMarker(description)
	return marker, found && err == nil
}

// FindMarker returns the marker in a VM's description, and false if it has none. It
// returns an error for several markers, and for one that is malformed or of another
// format: the VM is numaform's, but its declaration is unclear.
func FindMarker(description string) (Marker, bool, error) {
	var marker Marker
	found := false
	for line := range strings.Lines(description) {
		line = strings.TrimRight(line, "\r\n")
		if !anyMarker.MatchString(line) {
			continue
		}
		if found {
			return Marker{}, true, errors.New("the description has several lines that begin with numaform/: remove all but one")
		}
		var err error
		if marker, err = parseMarkerLine(line); err != nil {
			return Marker{}, true, err
		}
		found = true
	}
	return marker, found, nil
}

func parseMarkerLine(line string) (Marker, error) {
	if !strings.HasPrefix(line, markerPrefix) {
		return Marker{}, fmt.Errorf("marker %s: unknown format: must begin with %q", short(line), markerPrefix)
	}
	fields := markerPattern.FindStringSubmatch(line)
	if fields == nil {
		return Marker{}, fmt.Errorf("marker %s: malformed: must be \"numaform/1 cluster=ID key=KEY\", optionally followed by "+
			"\"pins=4,36,5,37\" and then by \"emulator=guest\" or \"emulator=shared\"", short(line))
	}
	var pins topology.Pins
	if fields[3] != "" {
		if err := pins.UnmarshalText([]byte(fields[3])); err != nil {
			return Marker{}, fmt.Errorf("marker %s: %w", short(line), err)
		}
	}
	return Marker{ClusterID: fields[1], Key: Key(fields[2]), Pins: pins, Emulator: Emulator(fields[4])}, nil
}

// short quotes untrusted text for an error message and shortens it.
func short(text string) string {
	const most = 120
	if len(text) > most {
		return strconv.QuoteToASCII(text[:most]) + "…"
	}
	return strconv.QuoteToASCII(text)
}
