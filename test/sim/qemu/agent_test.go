package qemu_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/test/sim/qemu"
)

// serveAgent serves one connection like a guest agent that first sends a late response to an
// earlier command. answer returns the response to a command; an empty one closes the
// connection, and "never" is not sent.
func serveAgent(t *testing.T, answer func(command string) string) *qemu.Hypervisor {
	t.Helper()
	dir, err := os.MkdirTemp("", "qga-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "2001"), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "2001", "qga"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintln(conn, `{"return": {"late": true}}`)
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			var command struct {
				Execute   string
				Arguments struct{ ID int }
			}
			if json.Unmarshal(lines.Bytes(), &command) != nil {
				return
			}
			if command.Execute == "guest-sync-delimited" {
				_, _ = fmt.Fprintf(conn, "\xff{\"return\": %d}\n", command.Arguments.ID)
				continue
			}
			switch text := answer(command.Execute); text {
			case "":
				return
			case "never":
			default:
				_, _ = fmt.Fprintln(conn, text)
			}
		}
	}()
	return qemu.At(dir)
}

func TestAgent(t *testing.T) {
	t.Parallel()
	h := serveAgent(t, func(command string) string { return fmt.Sprintf(`{"return": {"ran": %q}}`, command) })
	got, err := h.Agent(t.Context(), 2001, "guest-get-host-name", nil)
	if want := `{"ran": "guest-get-host-name"}`; err != nil || string(got) != want {
		t.Errorf("%s, error %v, want %s", got, err, want)
	}
}

func TestAgentRejectsCommand(t *testing.T) {
	t.Parallel()
	h := serveAgent(t, func(string) string { return `{"error": {"class": "GenericError", "desc": "no such file"}}` })
	_, err := h.Agent(t.Context(), 2001, "guest-exec", map[string]any{"path": "/nothing"})
	if rejected := (&qemu.AgentError{}); !errors.As(err, &rejected) || rejected.Desc != "no such file" {
		t.Errorf("error %v, want the agent's", err)
	}
}

// TestAgentShutsDown checks that a shutdown needs no response, because the guest may end
// before its agent sends one.
func TestAgentShutsDown(t *testing.T) {
	t.Parallel()
	h := serveAgent(t, func(string) string { return "" })
	if _, err := h.Agent(t.Context(), 2001, "guest-shutdown", nil); err != nil {
		t.Error(err)
	}
}

func TestAgentDoesNotRespond(t *testing.T) {
	t.Parallel()
	h := serveAgent(t, func(string) string { return "never" })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.Agent(ctx, 2001, "guest-ping", nil); err == nil || !strings.Contains(err.Error(), "got timeout") {
		t.Errorf("error %v, want a timeout", err)
	}
	if _, err := qemu.At(t.TempDir()).Agent(t.Context(), 2001, "guest-ping", nil); err == nil {
		t.Error("an agent without a socket responded")
	}
}
