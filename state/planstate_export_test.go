package state

// MadeFrom exports madeFrom.
var MadeFrom = madeFrom
