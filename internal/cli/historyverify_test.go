package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/store"
)

// historyStage is a fleet with a history.
type historyStage struct {
	dir, config string
	store       *store.Sealed
	changes     int
}

func newHistoryStage(t *testing.T) *historyStage {
	t.Helper()
	s := &historyStage{dir: t.TempDir()}
	s.config = s.path("numaform.yaml")
	put(t, s.path("token"), "5f7c1a52-0000-4abc-9def-001122334455\n")
	put(t, s.config, "clusterID: prod\nstate_dir: state\nfleet: {dir: fleet, backend: {type: local}}\nhistory: {checkpoint_dir: elsewhere}\n"+
		"clusters:\n- {region: lab, url: \"https://pve.example.com:8006/api2/json\", token_id: a@pve!b, token_secret_file: token}\n")
	s.store = store.NewSealed(store.NewDirectory(s.path("fleet")), store.FileVault(s.path("state", "history", "key")), "prod")
	return s
}

func (s *historyStage) path(names ...string) string {
	return filepath.Join(append([]string{s.dir}, names...)...)
}

// add adds a change and returns its ID.
func (s *historyStage) add(t *testing.T) string {
	t.Helper()
	s.changes++
	at := time.Date(2026, 11, 28, 12, s.changes, 0, 0, time.UTC)
	change := audit.Change{ID: fmt.Sprintf("%s-%06d", at.Format("20060102T150405Z"), s.changes), Time: at, ClusterID: "prod", Kind: audit.KindScaleUp, Why: "a test"}
	_, base, err := s.store.Read(t.Context())
	if err == nil {
		err = s.store.Begin(t.Context(), base, generator.Files{}, change)
	}
	if err == nil {
		err = s.store.End(t.Context(), audit.Outcome{ID: change.ID, Time: at})
	}
	if err != nil {
		t.Fatal(err)
	}
	return change.ID
}

// run runs numaform history with arguments.
func (s *historyStage) run(t *testing.T, want int, says string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := cli.Run(t.Context(), cli.Process{
		Args: append([]string{"history"}, args...), Environ: []string{"HOME=" + s.dir}, Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
	})
	if all := stdout.String() + stderr.String(); code != want || !strings.Contains(all, says) {
		t.Fatalf("numaform history %s: exit code %d, want %d and %q:\n%s", strings.Join(args, " "), code, want, says, all)
	}
	return stdout.String()
}

// TestHistoryVerify verifies a fleet with its key, and with the public key alone; finds what
// was removed; and accepts it.
func TestHistoryVerify(t *testing.T) {
	t.Parallel()
	s := newHistoryStage(t)
	s.run(t, cli.ExitFailed, "has no key yet", "key", "--config", s.config)
	first := s.add(t)
	second := s.add(t)
	key := strings.TrimSpace(s.run(t, cli.ExitOK, "numaform.dev/history/prod+", "key", "--config", s.config))
	s.run(t, cli.ExitOK, "complete up to 4 records, signed at 2026-11-28T12:02:00Z", "verify", "--config", s.config)
	offline := []string{"verify", "--from", s.path("fleet"), "--key", key}
	s.run(t, cli.ExitOK, "complete up to 4 records", offline...)
	s.run(t, cli.ExitUsage, "requires --key", "verify", "--from", s.path("fleet"))
	s.run(t, cli.ExitUsage, "must be a time such as", append(offline, "--since", "yesterday")...)
	s.run(t, cli.ExitUsage, "reading the key", "verify", "--from", s.path("fleet"), "--key", "x")
	s.run(t, cli.ExitFailed, "neither a git repository nor", "verify", "--from", s.path("nowhere"), "--key", key)
	if err := os.MkdirAll(s.path("empty", "history"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.run(t, cli.ExitFailed, "no record that a given key signed", "verify", "--from", s.path("empty"), "--key", key)
	s.run(t, cli.ExitUsage, "unexpected argument", "a", "b")
	s.run(t, cli.ExitOK, second, second, "--config", s.config)
	put(t, s.path("checkpoint"), s.run(t, cli.ExitOK, "\n4\n", "checkpoint", "--config", s.config))

	// A witness signs what it verified.
	witness := []string{"witness", "--key-file", s.path("witness.key")}
	put(t, s.path("witness.pub"), s.run(t, cli.ExitOK, "w.example.com+", append(witness, "--new-key", "w.example.com")...))
	public, err := os.ReadFile(s.path("witness.pub"))
	if err != nil {
		t.Fatal(err)
	}
	witness = append(witness, "--from", s.path("fleet"), "--key", key)
	put(t, s.path("cosigned"), s.run(t, cli.ExitOK, "— w.example.com ", witness...))
	witnessed := append(offline, "--witness", strings.TrimSpace(string(public)), "--checkpoint")
	s.run(t, cli.ExitOK, "witness w.example.com signed", append(witnessed, s.path("cosigned"))...)
	s.run(t, cli.ExitFailed, "signed no checkpoint", append(witnessed, s.path("checkpoint"))...)

	// An outcome in the middle, then the last change.
	remove := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.Remove(s.path("fleet", "history", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.run(t, cli.ExitFailed, "no fault to accept", "accept", "--config", s.config, "--reason", "x")
	remove(first + ".outcome.json")
	s.run(t, cli.ExitFailed, "number 1 of", offline...)
	s.run(t, cli.ExitFailed, "the history has 1 fault", "verify", "--config", s.config)
	s.run(t, cli.ExitUsage, "--reason is missing", "accept", "--config", s.config)
	s.run(t, cli.ExitOK, "accepted 1 fault in change", "accept", "--config", s.config, "--reason", "the disk was full")
	s.run(t, cli.ExitOK, "(accepted by change", "verify", "--config", s.config)
	s.run(t, cli.ExitOK, "the disk was full", "--config", s.config)
	s.run(t, cli.ExitOK, "(accepted by change", offline...)

	third := s.add(t) // by the process that ran all the time, as a controller does
	s.run(t, cli.ExitOK, "complete up to 8 records", "verify", "--config", s.config)
	remove(third+".json", third+".outcome.json")
	accepted, err := filepath.Glob(s.path("fleet", "history", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range accepted {
		if filepath.Base(path) > third {
			remove(filepath.Base(path))
		}
	}
	s.run(t, cli.ExitFailed, "the history has 1 fault", offline...) // the outcome: without a later checkpoint, the end is not missed
	s.run(t, cli.ExitFailed, "has no signed record since", append(offline, "--since", "2026-11-28T12:03:00Z")...)
	s.run(t, cli.ExitFailed, "cut", "verify", "--config", s.config)
	s.run(t, cli.ExitFailed, "numaform history accept-restore", "checkpoint", "--config", s.config)
	s.run(t, cli.ExitFailed, "run numaform history accept-restore", "accept", "--config", s.config, "--reason", "x")
	s.run(t, cli.ExitOK, "accepted", "accept-restore", "--config", s.config, "--reason", "from the backup of Monday")
	s.run(t, cli.ExitOK, "(accepted by change", "verify", "--config", s.config)
	s.run(t, cli.ExitOK, "\n2\n", "checkpoint", "--config", s.config)
	s.add(t)
	s.run(t, cli.ExitOK, "complete up to 4 records", "verify", "--config", s.config)
}

// TestHistoryForged checks what history shows of records that were edited or forged.
func TestHistoryForged(t *testing.T) {
	t.Parallel()
	s := newHistoryStage(t)
	first, second := s.add(t), s.add(t)
	edit := func(name, old, edited string) {
		t.Helper()
		content, err := os.ReadFile(s.path("fleet", "history", name))
		if err != nil || !strings.Contains(string(content), old) {
			t.Fatalf("%s: %v, without %q:\n%s", name, err, old, content)
		}
		put(t, s.path("fleet", "history", name), strings.Replace(string(content), old, edited, 1))
	}
	edit(first+".json", "a test", "a lie")
	edit(second+".outcome.json", `"duration_ns": 0`, `"duration_ns": 1`)
	forged := strings.Replace(second, "T1202", "T1203", 1)
	put(t, s.path("fleet", "history", forged+".json"), `{"format": 1, "id": "`+forged+`", "time": "2026-11-28T12:03:00Z", "cluster_id": "prod", "kind": "scale-up", "why": "x"}`)
	list := s.run(t, cli.ExitOK, "forged: done in", "--config", s.config)
	for _, want := range []string{"forged outcome: done in", "unsealed: unfinished"} {
		if !strings.Contains(list, want) {
			t.Errorf("the list does not contain %q:\n%s", want, list)
		}
	}
	s.run(t, cli.ExitOK, "problem  the record of the change is not what this installation signed", first, "--config", s.config)
	var entries []struct {
		Doubt        audit.Doubt `json:"doubt"`
		OutcomeDoubt audit.Doubt `json:"outcome_doubt"`
	}
	if err := json.Unmarshal([]byte(s.run(t, cli.ExitOK, "", "-o", "json", "--config", s.config)), &entries); err != nil {
		t.Fatal(err)
	}
	if len(entries) != 3 || entries[0].Doubt != audit.DoubtForged || entries[1].OutcomeDoubt != audit.DoubtForged || entries[2].Doubt != audit.DoubtUnsealed {
		t.Errorf("JSON %+v", entries)
	}
}

// TestCheckpointRemote verifies a fleet with checkpoints in another repository.
func TestCheckpointRemote(t *testing.T) {
	t.Parallel()
	s := newHistoryStage(t)
	remote := s.path("checkpoints.git")
	if out, err := exec.CommandContext(t.Context(), "git", "init", "--quiet", "--bare", remote).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	content, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s.config, strings.Replace(string(content), "checkpoint_dir: elsewhere", "checkpoint_remote: "+remote, 1))
	s.add(t)
	last := s.add(t)
	place, err := store.NewCheckpointRemote(remote, s.path("clone"), "prod", store.GitAuth{})
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.store.Audit(t.Context())
	if err == nil {
		err = place.Save(t.Context(), found.Log, found.Checkpoint)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.run(t, cli.ExitOK, "complete up to 4 records", "verify", "--config", s.config)
	// Without the head, only the other repository has the end of the log.
	for _, path := range []string{
		s.path("fleet", "history", last+".json"), s.path("fleet", "history", last+".outcome.json"), s.path("state", "history", "key-head"),
	} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t, cli.ExitFailed, "but a signed checkpoint has 4", "verify", "--config", s.config)
}

// TestHistoryVerifyClone verifies a mirror of a repository, and explains what a clone without
// the notes lacks.
func TestHistoryVerifyClone(t *testing.T) {
	t.Parallel()
	s := newHistoryStage(t)
	git := func(args ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), "git", args...)
		command.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + s.dir, "GIT_CONFIG_NOSYSTEM=1"}
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	remote, mirror, clone := s.path("remote.git"), s.path("mirror.git"), s.path("clone")
	git("init", "--quiet", "--bare", "--initial-branch=main", remote)
	repository, err := store.NewGit(store.GitConfig{Clone: s.path("state", "git"), Remote: remote, Subdir: "clusters/prod"})
	if err != nil {
		t.Fatal(err)
	}
	s.store = store.NewSealed(repository, store.FileVault(s.path("state", "history", "key")), "prod")
	s.add(t)
	s.add(t)
	key, err := s.store.PublicKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	git("clone", "--quiet", "--mirror", remote, mirror)
	git("clone", "--quiet", remote, clone)
	verify := func(from string) []string {
		return []string{"verify", "--from", from, "--subdir", "clusters/prod", "--key", key.String()}
	}
	s.run(t, cli.ExitOK, "complete up to 4 records", verify(mirror)...)
	s.run(t, cli.ExitFailed, "refs/notes/numaform:refs/notes/numaform", verify(clone)...)
	git("-C", clone, "fetch", "--quiet", "origin", "refs/notes/numaform:refs/notes/numaform")
	s.run(t, cli.ExitOK, "complete up to 4 records", verify(clone)...)

	// A clone from somebody else cannot make the command contact a server.
	origin := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the command contacted the origin") }))
	t.Cleanup(origin.Close)
	nested := filepath.Join(clone, ".git")
	git("init", "--quiet", nested)
	git("-C", nested, "--git-dir", filepath.Join(nested, ".git"), "remote", "add", "origin", origin.URL)
	s.run(t, cli.ExitOK, "complete up to 4 records", verify(clone)...)
}
