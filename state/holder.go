package state

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// gone reports whether a lock's holder is dead, by the record of a run in this directory
// or by what else is known about the holder's machine.
func (w *Workspace) gone(ctx context.Context, lock *LockedError) bool {
	if lock.Holder == HolderGone || w.config.Gone == nil {
		return lock.Holder == HolderGone
	}
	_, host, named := strings.Cut(lock.Who, "@")
	self, err := os.Hostname()
	if !named || err != nil || (host == self && !w.alone()) {
		return false
	}
	proof, gone := w.config.Gone(ctx, host)
	if gone {
		lock.Holder = HolderGone
		lock.Proof = fmt.Sprintf("%s took it at %s for %s; %s", lock.Who, lock.Created.UTC().Format(time.RFC3339), lock.Operation, proof)
	}
	return gone
}

// alone reports whether this host runs no engine or provider of another numaform that may
// use the same state.
func (w *Workspace) alone() bool {
	others, known := strangers(w.env.engine[clusterVariable], w.env.cluster)
	return known && len(others) == 0
}
