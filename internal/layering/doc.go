// Package layering defines the architecture as a table, and checks a source tree against
// it. Each package has a floor and imports only packages of lower floors, so every
// dependency points one way and the planner can be read without the controller. Pure
// packages use nothing that reads a clock, a disk, a network or the environment.
//
// It also limits the size of files and the nesting of functions, and requires one comment
// per package.
//
// It parses the sources itself: with the go command in a child process, go test could
// return a cached result after a source changed.
//
// It does not check imports from outside the module, except in pure packages and the agent:
// .golangci.yml does. Start at Table to see or extend the floors, and at Check for the
// rules.
package layering
