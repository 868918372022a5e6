package operator

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/internal/control"
)

// AskSwitch returns a function that reads the switch once, as a controller does
// repeatedly.
func AskSwitch(client kubernetes.Interface, namespace string, now func() time.Time) func(ctx context.Context) {
	s := &switchboard{source: control.New(client, namespace), now: now}
	return func(ctx context.Context) { _ = s.refresh(ctx) }
}

// WatchSwitch watches the switch until ctx ends. paused reports whether numaform is paused.
func WatchSwitch(ctx context.Context, client kubernetes.Interface, namespace string) (paused func() bool, done <-chan struct{}) {
	s := &switchboard{source: control.New(client, namespace), now: time.Now}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.run(ctx)
	}()
	return s.Paused, ended
}
