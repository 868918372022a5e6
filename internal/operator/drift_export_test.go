package operator

// Settled is settled.
var Settled = settled
