package bench_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// computing matches the sums in the controller's metrics about its own computing, with
// their part.
var computing = regexp.MustCompile(`(?m)^numaform_(?:(guard)|decision)_duration_seconds_sum(?:\{part="(\w+)"\})? (\S+)$`)

// computed returns how long the controller has computed so far, in seconds, by part: solve,
// place and guard.
func (c *cluster) computed() map[string]float64 {
	c.b.Helper()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+c.metrics+"/metrics", nil)
	if err != nil {
		c.b.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.b.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		c.b.Fatal(err)
	}
	seconds := map[string]float64{}
	for _, match := range computing.FindAllStringSubmatch(string(text), -1) {
		sum, err := strconv.ParseFloat(match[3], 64)
		if err != nil {
			c.b.Fatalf("%s: %v", match[0], err)
		}
		seconds[match[1]+match[2]] = sum
	}
	if len(seconds) != 3 {
		c.b.Fatalf("the metrics tell of %v, want solve, place and guard", seconds)
	}
	return seconds
}

// spent describes how long each part took in between.
func spent(before, now map[string]float64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		parts = append(parts, fmt.Sprintf("%s %.3f", name, now[name]-before[name]))
	}
	return strings.Join(parts, ", ")
}

// freeAddress returns an unused address on the loopback interface.
func freeAddress(b *testing.B) string {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		b.Fatal(err)
	}
	return listener.Addr().String()
}
