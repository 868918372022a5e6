// Command guestsim simulates the software inside the VMs of pvesim. It reads a
// configuration from its standard input, prints the address of its control port, and exits
// when the input is closed. With an argument, it runs one step of a guest with the data on
// its standard input: seed parses a disc, join parses documents, and certificate NODE
// requests the node's certificate with documents.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/numaform/numaform/test/sim/guestsim"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		return guestsim.Run(ctx, os.Stdin, os.Stdout)
	case args[0] == "seed" && len(args) == 1:
		disc, err := io.ReadAll(os.Stdin)
		if err != nil {
			return fmt.Errorf("reading disc: %w", err)
		}
		return printed(guestsim.ReadSeed(disc))
	case args[0] == "join" && len(args) == 1:
		var documents guestsim.Documents
		if err := json.NewDecoder(os.Stdin).Decode(&documents); err != nil {
			return fmt.Errorf("reading documents: %w", err)
		}
		return printed(guestsim.NewJoin(documents))
	case args[0] == "certificate" && len(args) == 2:
		return guestsim.RequestFor(ctx, args[1], os.Stdin, os.Stdout)
	}
	return errors.New("usage: guestsim [seed | join | certificate NODE]")
}

func printed[T any](result T, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
