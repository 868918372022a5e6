package guard

// Knows reports whether the guard can compute the values that the modules with a hash
// derive from their inputs.
func Knows(hash string) bool {
	_, known := nodeModules[hash]
	return known
}
