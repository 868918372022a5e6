// Command statesim is a server for the http backend of OpenTofu and Terraform. It reads {}
// from its standard input, prints the address of its control port, and exits when the input
// is closed.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/numaform/numaform/test/sim/statesim"
)

func main() {
	if err := statesim.Run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
