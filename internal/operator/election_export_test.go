package operator

// Release gives up the leader's Lease.
var Release = release
