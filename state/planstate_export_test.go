package state

// MadeFrom is madeFrom.
var MadeFrom = madeFrom
