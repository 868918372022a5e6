package fleet

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// markerPrefix begins the marker's line; the number is the marker's format.
const markerPrefix = "numaform/1 "

var (
	// markerPattern is strict because the host agent acts as root on what it says:
	// numbers have one spelling, and fields one order.
	markerPattern = regexp.MustCompile(
		`^numaform/1 cluster=([a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?) key=([0-9a-f]{32})` +
			`(?: pins=((?:0|[1-9][0-9]{0,4})(?:,(?:0|[1-9][0-9]{0,4}))*)(?: emulator=(guest|shared))?)?$`,
	)
	// anyMarker is a line that some version of numaform would read.
	anyMarker = regexp.MustCompile(`^numaform/[0-9]`)
)

// Emulator says where the host agent puts the threads of a VM that are no vCPUs:
// the emulator's own, those of its disks, and helpers.
type Emulator string

// The places of a VM's other threads.
const (
	// EmulatorGuest is the CPUs that the VM is pinned to.
	EmulatorGuest Emulator = "guest"
	// EmulatorShared is the CPUs that no VM is pinned to.
	EmulatorShared Emulator = "shared"
)

// Marker is the line of a VM's description that says whose it is. It looks like
//
//	numaform/1 cluster=prod key=5f1d… pins=4,36,5,37 emulator=shared
type Marker struct {
	ClusterID string
	Key       Key
	// Pins is the host CPU of vCPU 0, 1, 2, … if the host agent is to pin, or nil.
	Pins []int
	// Emulator is empty where the host's administrator decides, and without Pins.
	Emulator Emulator
}

// String returns the marker's line without a line break.
func (m Marker) String() string {
	line := fmt.Sprintf("%scluster=%s key=%s", markerPrefix, m.ClusterID, m.Key)
	if len(m.Pins) == 0 {
		return line
	}
	pins := make([]string, len(m.Pins))
	for i, cpu := range m.Pins {
		pins[i] = strconv.Itoa(cpu)
	}
	line += " pins=" + strings.Join(pins, ",")
	if m.Emulator != "" {
		line += " emulator=" + string(m.Emulator)
	}
	return line
}

// ParseMarker finds the marker in a VM's description. It reports false if there
// is none, if there are several, or if the one there is malformed: then the VM
// counts as someone else's.
func ParseMarker(description string) (Marker, bool) {
	marker, found, err := FindMarker(description)
	return marker, found && err == nil
}

// FindMarker finds the marker in a VM's description, and reports false if there is
// none. Several, and one that is malformed or of another format, are an error: the
// VM is numaform's, and nobody can tell what is wanted of it.
func FindMarker(description string) (Marker, bool, error) {
	var marker Marker
	found := false
	for line := range strings.Lines(description) {
		line = strings.TrimRight(line, "\r\n")
		if !anyMarker.MatchString(line) {
			continue
		}
		if found {
			return Marker{}, true, errors.New("the description has several lines that begin with numaform/: leave one")
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
		return Marker{}, fmt.Errorf("marker %s is of a format that is not known here: want %q", short(line), markerPrefix)
	}
	fields := markerPattern.FindStringSubmatch(line)
	if fields == nil {
		return Marker{}, fmt.Errorf("marker %s is malformed: want \"numaform/1 cluster=ID key=KEY\", then perhaps "+
			"\"pins=4,36,5,37\", then perhaps \"emulator=guest\" or \"emulator=shared\"", short(line))
	}
	marker := Marker{ClusterID: fields[1], Key: Key(fields[2]), Emulator: Emulator(fields[4])}
	if fields[3] == "" {
		return marker, nil
	}
	seen := map[int]bool{}
	for text := range strings.SplitSeq(fields[3], ",") {
		cpu, err := strconv.Atoi(text)
		if err != nil || cpu > topology.MaxCPU || seen[cpu] {
			return Marker{}, fmt.Errorf("marker %s: CPU %s is too large or stands there twice", short(line), text)
		}
		seen[cpu] = true
		marker.Pins = append(marker.Pins, cpu)
	}
	return marker, nil
}

// short quotes foreign text for an error, and shortens it.
func short(text string) string {
	const most = 120
	if len(text) > most {
		return strconv.QuoteToASCII(text[:most]) + "…"
	}
	return strconv.QuoteToASCII(text)
}
