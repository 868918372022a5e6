package cloudprovider

// Translate is for its table.
var Translate = translate

// Unusable, Unknown and Gone are errors of this package.
func Unusable() error { return &unusableError{"c", "v", "is gone"} }

// Unknown says that a class is not judged.
func Unknown() error { return &classUnknownError{"c"} }

// Gone says that a VM does not exist.
func Gone() error { return &goneError{"v"} }
