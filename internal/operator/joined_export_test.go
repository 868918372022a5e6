package operator

// Joined exports joined.
var Joined = joined
