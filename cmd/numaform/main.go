// Command numaform plans and applies Kubernetes nodes on Proxmox VE.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/confine"
)

// version is set by make build; otherwise, the module's version is used.
var version string

func main() {
	if err := confine.Main(); err != nil { // this process is a helper that numaform started
		fmt.Fprintln(os.Stderr, "numaform:", err)
		os.Exit(1)
	}
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		version = info.Main.Version
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
	code := cli.Run(ctx, cli.Process{
		Program: filepath.Base(os.Args[0]), Version: version, Args: os.Args[1:], Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	stop()
	os.Exit(code)
}
