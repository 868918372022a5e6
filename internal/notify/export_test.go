package notify

import "context"

// Replace replaces how messages are sent.
func (n *Notifier) Replace(send func(ctx context.Context, target string, m *Message) error) {
	for _, w := range n.workers {
		w.send = func(ctx context.Context, m *Message) error { return send(ctx, w.target.Name, m) }
	}
}

// Keys returns the number of causes that the first target remembers.
func (n *Notifier) Keys() int {
	w := n.workers[0]
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(len(w.pending.keys), len(w.sending.keys), len(w.sent))
}
