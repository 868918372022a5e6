package state_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/state"
)

// TestGone checks when the holder of a lock counts as dead: if Gone reports so for the host
// that the lock names, and on this host only if no other numaform's engine runs on it.
func TestGone(t *testing.T) {
	t.Parallel()
	self, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	w := open(t, root(t, localBackend), func(c *state.Config) {
		// No other engine on this host has this value.
		c.Env = map[string]string{"KUBE_NAMESPACE": t.Name()}
		c.Gone = func(_ context.Context, host string) (string, bool) {
			asked = append(asked, host)
			return "the proof", host != "lives"
		}
	})
	if _, err := w.Recover(t.Context()); err != nil { // this opens the workspace, which sets its environment
		t.Fatal(err)
	}
	gone := func(who string) bool {
		lock := &state.LockedError{LockInfo: state.LockInfo{Who: who, Created: time.Now()}, Holder: state.HolderUnknown}
		is := w.Gone(t.Context(), lock)
		if is != (lock.Holder == state.HolderGone) || is != strings.HasSuffix(lock.Proof, "the proof") {
			t.Errorf("%s: %t, and the lock says %q, %q", who, is, lock.Holder, lock.Proof)
		}
		return is
	}
	if !gone("root@dead") || gone("root@lives") || gone("someone") || !gone("root@"+self) {
		t.Error("want what is known of the host, or nothing if none is named")
	}
	engine := exec.CommandContext(t.Context(), "sleep", "60")
	engine.Env = []string{w.Mark(), w.Cluster()}
	stranger := exec.CommandContext(t.Context(), "sh", "-c", "exec setsid -f sleep 60")
	stranger.Env = append(slices.Clone(engine.Env), "PATH="+os.Getenv("PATH"))
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	if !gone("root@" + self) {
		t.Error("an engine below this process is taken for another's")
	}
	if err := stranger.Run(); err != nil {
		t.Fatal(err)
	}
	if gone("root@" + self) {
		t.Error("an engine of another process is not seen")
	}
	for _, pid := range engines(t, w) {
		if process, err := os.FindProcess(pid); err == nil {
			_ = process.Kill() // it may have ended
		}
	}
	_ = engine.Wait() // it was killed
	if want := []string{"dead", "lives", self, self}; !slices.Equal(asked, want) {
		t.Errorf("asked about %v, want %v", asked, want)
	}
}
