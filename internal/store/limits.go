package store

// The limits of a fleet. Numbers and sizes of files are checked before their content is
// read. A fleet of several thousand VMs with years of history is far below each limit.
const (
	// maxFile limits one file of the fleet, maxRecord one record of its history.
	maxFile   = 1 << 20
	maxRecord = 8 << 20
	// maxFiles and maxBytes limit all files except records, which are read on demand;
	// maxRecords limits the number of records, maxHistory the bytes of records that are
	// read at once.
	maxFiles   = 100_000
	maxBytes   = 256 << 20
	maxRecords = 2_000_000
	maxHistory = 512 << 20
	// maxMerge limits what a pull request adds to the repository, in compressed bytes. A
	// change of every file of a large fleet has about a third of it.
	maxMerge = 32 << 20
)
