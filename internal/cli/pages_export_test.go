package cli

import "github.com/spf13/cobra"

// NewRoot exposes newRoot to the tests.
func NewRoot(process Process) *cobra.Command { return newRoot(process) }
