package fleet

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// markerPrefix begins the marker's line; the number is the marker's format.
const markerPrefix = "numaform/1 "

// markerPattern is strict because the host agent acts as root on what it says.
var markerPattern = regexp.MustCompile(
	`^numaform/1 cluster=([a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?) key=([0-9a-f]{32})(?: pins=([0-9]{1,5}(?:,[0-9]{1,5})*))?$`,
)

// Marker is the line of a VM's description that says whose it is. It looks like
//
//	numaform/1 cluster=prod key=5f1d… pins=4,36,5,37
type Marker struct {
	ClusterID string
	Key       Key
	// Pins is the host CPU of vCPU 0, 1, 2, … if the host agent is to pin, or nil.
	Pins []int
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
	return line + " pins=" + strings.Join(pins, ",")
}

// ParseMarker finds the marker in a VM's description. It reports false if there
// is none, if there are several, or if the one there is malformed: then the VM
// counts as someone else's.
func ParseMarker(description string) (Marker, bool) {
	var found []Marker
	for line := range strings.Lines(description) {
		line = strings.TrimRight(line, "\r\n")
		if !strings.HasPrefix(line, markerPrefix) {
			continue
		}
		marker, ok := parseMarkerLine(line)
		if !ok {
			return Marker{}, false
		}
		found = append(found, marker)
	}
	if len(found) != 1 {
		return Marker{}, false
	}
	return found[0], true
}

func parseMarkerLine(line string) (Marker, bool) {
	fields := markerPattern.FindStringSubmatch(line)
	if fields == nil {
		return Marker{}, false
	}
	marker := Marker{ClusterID: fields[1], Key: Key(fields[2])}
	if fields[3] == "" {
		return marker, true
	}
	seen := map[int]bool{}
	for text := range strings.SplitSeq(fields[3], ",") {
		cpu, err := strconv.Atoi(text)
		if err != nil || seen[cpu] {
			return Marker{}, false
		}
		seen[cpu] = true
		marker.Pins = append(marker.Pins, cpu)
	}
	return marker, true
}
