package term

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"k8s.io/utils/clock"
)

const (
	// quiet is the duration after which progress is shown.
	quiet = 2 * time.Second
	// every is the interval at which a line in a terminal is redrawn.
	every = time.Second
	// DefaultInterval is the interval of lines in a file.
	DefaultInterval = 10 * time.Second
)

// Screen writes messages, and keeps a progress line below them. It is safe for concurrent
// use.
type Screen struct {
	// Interval is the interval of progress lines if the screen is not a terminal. Set it
	// before Start.
	Interval time.Duration

	terminal Terminal
	clock    clock.WithTicker

	mu    sync.Mutex
	w     io.Writer // guarded by mu
	drawn bool      // guarded by mu: the progress line is on the screen
}

// NewScreen returns a Screen that writes to w, which terminal describes.
func NewScreen(w io.Writer, terminal Terminal, clock clock.WithTicker) *Screen {
	return &Screen{Interval: DefaultInterval, w: w, terminal: terminal, clock: clock}
}

// Write removes the progress line and writes text.
func (s *Screen) Write(text []byte) (int, error) { return s.Over(s.w).Write(text) }

// Fd returns the file descriptor of the terminal or file, or an invalid one.
func (s *Screen) Fd() uintptr { return s.Over(s.w).Fd() }

// Over returns a writer to w, such as stdout, that removes the progress line first.
func (s *Screen) Over(w io.Writer) Writer { return Writer{screen: s, w: w} }

// Writer writes to the terminal that a Screen uses.
type Writer struct {
	screen *Screen
	w      io.Writer
}

// Write removes the progress line and writes text.
func (w Writer) Write(text []byte) (int, error) {
	w.screen.mu.Lock()
	defer w.screen.mu.Unlock()
	w.screen.clear()
	return w.w.Write(text)
}

// Fd returns the file descriptor of the terminal or file, or an invalid one.
func (w Writer) Fd() uintptr {
	if file, ok := w.w.(interface{ Fd() uintptr }); ok {
		return file.Fd()
	}
	return ^uintptr(0)
}

// clear removes the progress line. The caller holds mu.
func (s *Screen) clear() {
	if s.drawn {
		fmt.Fprint(s.w, "\r"+ansi.EraseEntireLine)
		s.drawn = false
	}
}

// draw shows a progress line.
func (s *Screen) draw(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	if !s.terminal.Live {
		fmt.Fprintln(s.w, line)
		return
	}
	fmt.Fprint(s.w, ansi.Truncate(line, s.terminal.Width-1, "…"))
	s.drawn = true
}

// Progress is the progress line of one activity.
type Progress struct {
	screen   *Screen
	what     string
	start    time.Time
	stop     chan struct{}
	finished chan struct{}

	mu      sync.Mutex
	n, m    int       // guarded by mu
	printed time.Time // guarded by mu
}

// Start shows the progress of what after 2 seconds, until Stop: "what: n of m, elapsed". A
// total of 0 omits n of m. The caller must call Stop.
func (s *Screen) Start(what string, total int) *Progress {
	p := &Progress{screen: s, what: what, m: total, start: s.clock.Now(), stop: make(chan struct{}), finished: make(chan struct{})}
	ticker := s.clock.NewTicker(every)
	go func() {
		defer close(p.finished)
		defer ticker.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-ticker.C():
				p.show()
			}
		}
	}()
	return p
}

// Done sets the number of finished parts, out of a total.
func (p *Progress) Done(n, total int) {
	p.mu.Lock()
	p.n, p.m = n, total
	p.mu.Unlock()
	p.show()
}

// show draws the line if it is due.
func (p *Progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.screen.clock.Now()
	elapsed := now.Sub(p.start)
	due := p.screen.terminal.Live || now.Sub(p.printed) >= p.screen.Interval
	if elapsed < quiet || !due {
		return
	}
	p.printed = now
	line := fmt.Sprintf("%s, %s", p.what, elapsed.Round(time.Second))
	if p.m > 0 {
		line = fmt.Sprintf("%s: %d of %d, %s", p.what, p.n, p.m, elapsed.Round(time.Second))
	}
	p.screen.draw(line)
}

// Stop ends the progress line and removes it from the terminal.
func (p *Progress) Stop() {
	close(p.stop)
	<-p.finished
	p.screen.mu.Lock()
	defer p.screen.mu.Unlock()
	p.screen.clear()
}
