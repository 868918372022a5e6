// Command demo runs the quickstart example on a simulated Proxmox.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/demo"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "numaform-demo-")
	if err != nil {
		return err
	}
	return demo.Run(ctx, demo.Config{
		Example: examples.Quickstart(), Region: "homelab", Template: "debian-13-k8s", Clusters: []string{"quickstart"},
		Dir: dir, PluginDir: os.Getenv("NUMAFORM_ENGINE_PLUGIN_DIR"),
		Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr,
	})
}
