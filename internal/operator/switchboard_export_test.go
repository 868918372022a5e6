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
	return s.refresh
}
