package qemu

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// segment is an Ethernet segment that connects the cards of VMs on one bridge. It works like
// a hub: it sends each frame to all cards except the sender's.
type segment struct {
	conn *net.UnixConn
	done chan struct{}

	// mu guards cards, the sockets of the cards on the segment.
	mu    sync.Mutex
	cards map[string]*net.UnixAddr
}

// Sizes of an Ethernet frame, with room for VLAN tags and larger MTUs, and of a segment's
// buffer.
const (
	maxFrame      = 64 << 10
	segmentBuffer = 4 << 20
)

// frameLimit is how long a segment waits for a VM to accept a frame before it drops the
// frame.
const frameLimit = 50 * time.Millisecond

// newSegment starts a segment to which cards send frames by a socket with that path.
func newSegment(path string) (*segment, error) {
	_ = os.Remove(path) // a killed process leaves its socket
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(conn.SetReadBuffer(segmentBuffer), conn.SetWriteBuffer(segmentBuffer)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &segment{conn: conn, done: make(chan struct{}), cards: map[string]*net.UnixAddr{}}
	go s.forward()
	return s, nil
}

// forward sends frames on until the segment is closed.
func (s *segment) forward() {
	defer close(s.done)
	frame := make([]byte, maxFrame)
	for {
		size, from, err := s.conn.ReadFromUnix(frame)
		if err != nil {
			return
		}
		s.mu.Lock()
		var others []*net.UnixAddr
		for path, card := range s.cards {
			if from == nil || path != from.Name {
				others = append(others, card)
			}
		}
		s.mu.Unlock()
		for _, card := range others {
			_ = s.conn.SetWriteDeadline(time.Now().Add(frameLimit))
			_, _ = s.conn.WriteToUnix(frame[:size], card) // like a hub, it drops what a card does not accept
		}
	}
}

// join connects a card, whose VM reads frames from the socket with that path.
func (s *segment) join(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cards[path] = &net.UnixAddr{Name: path, Net: "unixgram"}
}

func (s *segment) leave(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cards, path)
}

func (s *segment) close() {
	_ = s.conn.Close()
	<-s.done
	_ = os.Remove(s.conn.LocalAddr().String())
}

// connect connects the cards of a VM to the segments of their bridges, and returns a function
// that disconnects them.
func (h *Hypervisor) connect(vm VM, dir string) (disconnect func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var leave []func()
	for i := range maxCards {
		id := "net" + strconv.Itoa(i)
		card := vm.Options[id]
		if card == "" || bridge(card) == uplink {
			continue
		}
		at := filepath.Join(h.cfg.Dir, bridge(card))
		if h.segments[at] == nil {
			made, err := newSegment(at)
			if err != nil {
				return nil, err
			}
			h.segments[at] = made
		}
		segment, path := h.segments[at], filepath.Join(dir, id)
		segment.join(path)
		leave = append(leave, func() { segment.leave(path) })
	}
	return func() {
		for _, leave := range leave {
			leave()
		}
	}, nil
}
