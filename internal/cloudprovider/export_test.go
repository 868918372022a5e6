package cloudprovider

// Translate and the errors that only this package makes, for their table.
var (
	Translate    = translate
	ErrNotSynced = errNotSynced
)

// Unusable, Unknown and Gone are errors of this package.
func Unusable() error { return &unusableError{"c", "v", "is gone"} }

// Unknown says that a class is not judged.
func Unknown() error { return &classUnknownError{"c"} }

// Gone says that a VM does not exist.
func Gone() error { return &goneError{"v"} }
