package cloudprovider

// Translate exports translate.
var Translate = translate

// Unusable returns the error for a VM that will not become a node.
func Unusable() error { return &unusableError{"c", "v", "is gone"} }

// Unknown returns the error for a class that has not been validated.
func Unknown() error { return &classUnknownError{"c"} }

// Gone returns the error for a VM that does not exist.
func Gone() error { return &goneError{"v"} }
