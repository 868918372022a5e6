package operator

// Slim removes the parts of an object that are not cached.
func Slim(object any) (any, error) { return slim(object) }
