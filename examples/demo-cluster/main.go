// Command demo-cluster demonstrates numaform's controller in a Kubernetes control plane
// that it starts on this machine, with the hosts of the quickstart.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/demo"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "demo-cluster: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	tools := flag.String("tools", ".tools/bin", "directory with etcd and the Kubernetes programs that make builds")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
	if err := forgetClusters(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "numaform-demo-cluster-")
	if err != nil {
		return err
	}
	return demo.RunCluster(ctx, demo.ClusterConfig{
		Config: demo.Config{
			Example: examples.Quickstart(), Region: "homelab", Template: "debian-13-k8s", Clusters: []string{"quickstart"},
			Dir: dir, PluginDir: os.Getenv("NUMAFORM_ENGINE_PLUGIN_DIR"),
			Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr,
		},
		Tools: *tools, Manifests: examples.Manifests(),
	})
}

// forgetClusters unsets the environment variables that would make the engine's kubernetes
// backend use one of the user's clusters.
func forgetClusters() error {
	var errs []error
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "KUBE") {
			errs = append(errs, os.Unsetenv(name))
		}
	}
	return errors.Join(errs...)
}
