package cli_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/translog"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// BenchmarkHistoryVerify runs numaform history verify --from for histories of changes of 2 KiB:
// 100,000 in a directory, and 5,000 in a clone, whose commits git needs minutes to make.
func BenchmarkHistoryVerify(b *testing.B) {
	for name, changes := range map[string]int{"directory": 100_000, "clone": 5_000} {
		b.Run(name, func(b *testing.B) {
			dir, clone := b.TempDir(), filepath.Join(b.TempDir(), "fleet.git")
			key := writeHistory(b, changes, dir, clone, name == "clone")
			from := dir
			if name == "clone" {
				from = clone
			}
			before := cpuTime(b)
			for b.Loop() {
				var stdout, stderr bytes.Buffer
				code := cli.Run(b.Context(), cli.Process{
					Args: []string{"history", "verify", "--from", from, "--key", key}, Environ: []string{"HOME=" + dir}, Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
				})
				if want := fmt.Sprintf("complete up to %d records", 2*changes); code != cli.ExitOK || !strings.Contains(stdout.String(), want) {
					b.Fatalf("exit code %d, want %q: %s%s", code, want, &stdout, &stderr)
				}
			}
			b.ReportMetric((cpuTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}

// cpuTime returns the CPU time so far of this process and the programs that it ran, which the
// load of the machine changes less than the wall-clock time.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	total := int64(0)
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if err := unix.Getrusage(who, &usage); err != nil {
			b.Fatal(err)
		}
		total += usage.Utime.Nano() + usage.Stime.Nano()
	}
	return time.Duration(total)
}

// writeHistory writes a history into a directory or, if inGit is set, into a repository in which
// each change is a commit and each outcome a note, and returns the public key.
func writeHistory(b *testing.B, changes int, dir, repository string, inGit bool) string {
	b.Helper()
	var key audit.Key
	signer, err := key.Signer("prod")
	if err != nil {
		b.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "history"), 0o700); err != nil {
		b.Fatal(err)
	}
	commits, end := bufio.NewWriter(io.Discard), func() error { return nil }
	if inGit {
		commits, end = fastImport(b, repository)
	}

	var tree translog.Tree
	place := func(logged *audit.Logged, leafOf func() (translog.Leaf, error)) {
		leaf, err := leafOf()
		if err == nil {
			logged.Seal, err = tree.Seal(leaf, signer, "A")
		}
		if err != nil {
			b.Fatal(err)
		}
		tree = tree.Add(leaf)
	}
	write := func(name string, record any) []byte {
		content, err := json.MarshalIndent(record, "", "  ")
		if err == nil {
			content = append(content, '\n')
		}
		if err == nil && !inGit {
			err = os.WriteFile(filepath.Join(dir, "history", name), content, 0o600)
		}
		if err != nil {
			b.Fatal(err)
		}
		return content
	}
	// commit writes the start of a commit, and what fast-import calls data.
	commit := func(at time.Time, branch string, mark int) {
		fmt.Fprintf(commits, "commit refs/%s\n", branch)
		if mark > 0 {
			fmt.Fprintf(commits, "mark :%d\n", mark)
		}
		fmt.Fprintf(commits, "committer numaform <numaform@localhost> %d +0000\ndata 7\nchange\n\n", at.Unix())
	}
	for i := range changes {
		change := typicalChange(i)
		place(&change.Logged, func() (translog.Leaf, error) { return change.Leaf() })
		if change, err = key.SealChange("prod", change); err != nil {
			b.Fatal(err)
		}
		content := write(change.ID+".json", change)
		commit(change.Time, "heads/main", i+1)
		fmt.Fprintf(commits, "M 100644 inline history/%s/%s/%s.json\ndata %d\n%s\n", change.ID[:4], change.ID[4:6], change.ID, len(content), content)

		outcome := audit.Outcome{ID: change.ID, Time: change.Time.Add(time.Minute), Duration: 50 * time.Second, Hosts: []audit.Ended{{Host: change.Hosts[0].Host, Duration: 50 * time.Second}}}
		place(&outcome.Logged, func() (translog.Leaf, error) { return outcome.Leaf() })
		if outcome, err = key.SealOutcome("prod", change.Digest, outcome); err != nil {
			b.Fatal(err)
		}
		content = write(outcome.ID+".outcome.json", outcome)
		commit(outcome.Time, "notes/numaform", 0)
		fmt.Fprintf(commits, "N inline :%d\ndata %d\n%s\n", i+1, len(content), content)
	}
	err = commits.Flush()
	if err == nil {
		err = end()
	}
	if err != nil {
		b.Fatal(err)
	}
	return signer.Key().String()
}

// fastImport creates a repository, and returns what git fast-import reads, and waits for its end.
func fastImport(b *testing.B, repository string) (commits *bufio.Writer, end func() error) {
	b.Helper()
	git := func(args ...string) *exec.Cmd {
		command := exec.CommandContext(b.Context(), "git", args...)
		command.Dir, command.Stderr = filepath.Dir(repository), os.Stderr
		command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
		return command
	}
	if err := git("init", "--quiet", "--bare", "--initial-branch=main", repository).Run(); err != nil {
		b.Fatal(err)
	}
	load := git("-C", repository, "fast-import", "--quiet")
	pipe, err := load.StdinPipe()
	if err == nil {
		err = load.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	return bufio.NewWriterSize(pipe, 1<<20), func() error { return errors.Join(pipe.Close(), load.Wait()) }
}

// typicalChange returns a change of 2 KiB: a VM is added.
func typicalChange(i int) audit.Change {
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC).Add(time.Duration(i) * 10 * time.Minute)
	host := topology.HostID{Region: "lab", Host: "pve-1"}
	name := fmt.Sprintf("workers-%d", i)
	vm := fleet.VM{
		Key: fleet.Key(fmt.Sprintf("%010x", i)), VMID: fleet.VMID(2000 + i%5000), Name: name, Module: "2f6a0c8e5b1d4f7a",
		Spec: fleet.Spec{
			Pool: "workers", NodeClass: "general", InstanceType: "general-4-8", CapacityType: "on-demand", VCPUs: 4, MemoryMiB: 8192,
			Policy: fleet.PolicyDedicated, Hosts: []topology.HostID{host}, Template: "debian-13",
		},
		Placement: fleet.Placement{Host: host, CPUs: topology.CPUs(4, 5, 6, 7), VCPUPins: []int{4, 5, 6, 7}, Reason: "4 whole cores of NUMA node 0, with the memory & <no other VM>"},
		Source:    fleet.Source{VMID: 9000, DiskInterface: "scsi0", DiskGiB: 20, Storage: "local-zfs", Options: map[string]string{"agent": "1", "machine": "q35"}},
	}
	create := guard.Target{Address: "module." + name + ".proxmox_virtual_environment_vm.node", VMID: vm.VMID, Key: vm.Key, Host: host.Host, Pool: vm.Pool, Module: vm.Module}
	return audit.Change{
		ID: fmt.Sprintf("%s-%010x", at.Format("20060102T150405Z"), i), Time: at, ClusterID: "prod", Kind: audit.KindScaleUp, Actor: "controller/numaform-0", Version: "v1.4.0",
		Why:   fmt.Sprintf("%d pods wait for a node with 4 CPUs", i%7+1),
		Added: []fleet.VM{vm},
		Hosts: []audit.HostPlan{{Host: host, PlanSHA256: strings.Repeat("0f", 32), PlanDigest: strings.Repeat("1e", 32), Create: []guard.Target{create}}},
	}
}
