// Command numaform-agent applies the CPU pins of VMs on the Proxmox host that it runs on.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/numaform/numaform/internal/agent"
)

// version is set by the build.
var version = "(devel)"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := program{environ: os.LookupEnv, stdout: os.Stdout, stderr: os.Stderr, pvesh: agent.RunPvesh}
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
