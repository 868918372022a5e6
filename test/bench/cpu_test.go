package bench_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// tick is the unit of CPU time in /proc.
const tick = 10 * time.Millisecond

// usage returns the CPU time of running programs so far: this one, which simulates Proxmox
// and the guests, its child processes, and providers.
func usage(b *testing.B) map[string]time.Duration {
	b.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	used := map[string]time.Duration{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		before, after, ok := strings.Cut(string(text), ") ")
		pid, name, named := strings.Cut(before, " (")
		fields := strings.Fields(after)
		if !ok || !named || len(fields) < 13 {
			b.Fatalf("%s has %q", file, text)
		}
		self := strconv.Itoa(os.Getpid())
		if pid != self && fields[1] != self && !strings.HasPrefix(name, "terraform-prov") {
			continue
		}
		for _, ticks := range fields[11:13] {
			n, err := strconv.Atoi(ticks)
			if err != nil {
				b.Fatalf("%s has %q: %v", file, text, err)
			}
			used[name] += time.Duration(n) * tick
		}
	}
	return used
}

// since describes the CPU time that programs used since an earlier result of usage.
func since(before, now map[string]time.Duration) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		parts = append(parts, fmt.Sprintf("%s %.2f", name, (now[name]-before[name]).Seconds()))
	}
	return strings.Join(parts, ", ")
}
