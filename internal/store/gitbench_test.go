package store_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/store"
)

// The maximum cost of a read in a repository with other files: maxBeside relative to the
// same fleet alone, maxFirst relative to git clone.
const (
	maxBeside = 1.2
	maxFirst  = 1.2
)

// BenchmarkGitBesideMuch reads a fleet of 1,000 VMs in a repository with 1 GB of other
// files: the first time compared with git clone, then compared with the same fleet alone.
func BenchmarkGitBesideMuch(b *testing.B) {
	vms := map[fleet.VMID]string{}
	for i := range 1000 {
		vms[fleet.VMID(2000+i)] = fmt.Sprintf("pve-%d", i%20)
	}
	files := render(vms)
	dir := b.TempDir()
	alone, much := filepath.Join(dir, "alone.git"), filepath.Join(dir, "much.git")
	for _, remote := range []string{alone, much} {
		gitIn(b, dir, "init", "--quiet", "--bare", "--initial-branch=main", remote)
		if remote == much {
			importMuch(b, remote)
		}
		g, err := store.NewGit(store.GitConfig{Clone: b.TempDir(), Remote: remote, Subdir: "fleet"})
		if err != nil {
			b.Fatal(err)
		}
		_, base, err := g.Read(b.Context())
		if err == nil {
			err = g.Begin(b.Context(), base, files, changed(0))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		cloning, first := time.Duration(1<<62), time.Duration(1<<62)
		again := map[string]*cost{alone: {time: 1 << 62}, much: {time: 1 << 62}}
		for range 3 {
			started := time.Now()
			gitIn(b, dir, "clone", "--quiet", "--bare", "--single-branch", "file://"+much, filepath.Join(b.TempDir(), "clone.git"))
			cloning = min(cloning, time.Since(started))
			for remote, best := range again {
				clone := b.TempDir()
				once := readOnce(b, clone, remote)
				if remote == much {
					first = min(first, once.time)
				}
				for range 3 {
					twice := readOnce(b, clone, remote)
					best.time, best.bytes = min(best.time, twice.time), twice.bytes
				}
			}
		}
		report := func(name string, value, most float64) {
			b.ReportMetric(value, name)
			if value > most {
				b.Errorf("%s is %.2f, want at most %.2f (first %s, clone %s, again %v, alone %v)", name, value, most, first, cloning, *again[much], *again[alone])
			}
		}
		report("first/clone", float64(first)/float64(cloning), maxFirst)
		report("time/alone", float64(again[much].time)/float64(again[alone].time), maxBeside)
		report("bytes/alone", float64(again[much].bytes)/float64(again[alone].bytes), maxBeside)
		b.ReportMetric(again[much].time.Seconds()*1000, "ms")
		b.ReportMetric(float64(again[much].bytes)/(1<<20), "MiB")
		b.ReportMetric(first.Seconds(), "first-s")
	}
}

// cost is the cost of a read.
type cost struct {
	time  time.Duration
	bytes uint64
}

func readOnce(b *testing.B, clone, remote string) cost {
	b.Helper()
	g, err := store.NewGit(store.GitConfig{Clone: clone, Remote: remote, Subdir: "fleet"})
	if err != nil {
		b.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	started := time.Now()
	files, _, err := g.Read(b.Context())
	took := time.Since(started)
	runtime.ReadMemStats(&after)
	if err != nil || len(files) < 1000 {
		b.Fatalf("%d files, %v", len(files), err)
	}
	return cost{time: took, bytes: after.TotalAlloc - before.TotalAlloc}
}

func gitIn(b *testing.B, dir string, args ...string) {
	b.Helper()
	command := exec.CommandContext(b.Context(), "git", args...)
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		b.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// importMuch adds 500 incompressible files of 2 MB and 20,000 small ones to a repository.
func importMuch(b *testing.B, remote string) {
	b.Helper()
	command := exec.CommandContext(b.Context(), "git", "-c", "core.compression=0", "fast-import", "--quiet")
	command.Dir, command.Stderr = remote, os.Stderr
	pipe, err := command.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriterSize(pipe, 1<<20)
	random := rand.NewChaCha8([32]byte{1})
	content := make([]byte, 2_000_000)
	fmt.Fprintf(w, "commit refs/heads/main\ncommitter Ann <ann@example.org> 1795348800 +0000\ndata 4\nmuch\n")
	for i := range 20_500 {
		size := 50 + i%200
		if i < 500 {
			size = len(content)
		}
		_, _ = random.Read(content[:size]) // it never fails
		fmt.Fprintf(w, "M 100644 inline other/%d/%d\ndata %d\n", i%100, i, size)
		_, _ = w.Write(content[:size]) // Flush returns the error
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := pipe.Close(); err != nil {
		b.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		b.Fatal(err)
	}
}
