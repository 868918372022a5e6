package qemu_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/numaform/numaform/test/sim/qemu"
)

// card is a network card on a segment, as QEMU operates it.
type card struct {
	conn       *net.UnixConn
	segment    *net.UnixAddr
	disconnect func()
}

// newCard connects net1 of a VM to a bridge.
func newCard(t *testing.T, h *qemu.Hypervisor, dir string, vmid int, bridge string) *card {
	t.Helper()
	own := filepath.Join(dir, strconv.Itoa(vmid))
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	address := net.UnixAddr{Name: filepath.Join(own, "net1"), Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", &address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	vm := qemu.VM{VMID: vmid, Options: map[string]string{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "net1": "virtio=BC:24:11:00:00:02,bridge=" + bridge}}
	disconnect, err := h.Connect(vm, own)
	if err != nil {
		t.Fatal(err)
	}
	return &card{conn: conn, segment: &net.UnixAddr{Name: filepath.Join(dir, bridge), Net: "unixgram"}, disconnect: disconnect}
}

func (c *card) send(t *testing.T, frame string) {
	t.Helper()
	if _, err := c.conn.WriteToUnix([]byte(frame), c.segment); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next frame, or "" if there is none within the limit.
func (c *card) receive(t *testing.T, limit time.Duration) string {
	t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 2048)
	size, err := c.conn.Read(frame)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(frame[:size])
}

// TestSegment checks that a frame reaches all other connected cards on the same bridge, and no
// card on another bridge.
func TestSegment(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "seg-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := qemu.At(dir)
	t.Cleanup(h.Close)
	one, two, three := newCard(t, h, dir, 2001, "vmbr1"), newCard(t, h, dir, 2002, "vmbr1"), newCard(t, h, dir, 2003, "vmbr1")
	foreign := newCard(t, h, dir, 2004, "vmbr2")

	one.send(t, "hello")
	for name, card := range map[string]*card{"2002": two, "2003": three} {
		if got := card.receive(t, time.Minute); got != "hello" {
			t.Errorf("VM %s received %q, want hello", name, got)
		}
	}
	const quiet = 50 * time.Millisecond
	for name, card := range map[string]*card{"the sender": one, "a VM on another bridge": foreign} {
		if got := card.receive(t, quiet); got != "" {
			t.Errorf("%s received %q", name, got)
		}
	}

	three.disconnect()
	two.send(t, "again")
	if got := one.receive(t, time.Minute); got != "again" {
		t.Errorf("VM 2001 received %q, want again", got)
	}
	if got := three.receive(t, quiet); got != "" {
		t.Errorf("a disconnected card received %q", got)
	}
}
