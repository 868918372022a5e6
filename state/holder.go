package state

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// gone reports whether the holder of a lock is dead: by the record of a run in this
// directory, or by what else is known of the machine that it works on.
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

// alone reports whether no engine or provider of another numaform works on this host, as
// far as it may be on the same state.
func (w *Workspace) alone() bool {
	others, known := strangers(w.env.engine[clusterVariable], w.env.cluster)
	return known && len(others) == 0
}
