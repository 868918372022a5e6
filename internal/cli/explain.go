package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/numaform/numaform/internal/scheduling"
)

func newExplain(process Process) *cobra.Command {
	o := options{noEngine: true}
	var pod types.NamespacedName
	command := &cobra.Command{
		Use:   "explain pod NAMESPACE/NAME",
		Short: "Explain why a pod is pending, by NodePool, host and NUMA node",
		Args: func(_ *cobra.Command, args []string) (err error) {
			pod, err = podArgument(args)
			return err
		},
		RunE: func(command *cobra.Command, _ []string) error {
			ctx := command.Context()
			s, err := open(ctx, process, &o)
			if err != nil {
				return err
			}
			current, _, err := s.scaler.Fleet(ctx)
			if err != nil {
				return err
			}
			request, err := s.request(&current)
			if err != nil {
				return err
			}
			x, err := s.cluster.Explain(ctx, request, pod)
			if err != nil {
				return err
			}
			if o.output != "text" {
				return printData(process, o.output, x)
			}
			w := newPrinter(process)
			w.explanation(x)
			return w.err
		},
	}
	o.register(command.Flags())
	return command
}

// podArgument parses "pod NAMESPACE/NAME" or, as in kubectl, "pod/NAME".
func podArgument(args []string) (types.NamespacedName, error) {
	var pod types.NamespacedName
	if len(args) == 1 {
		args = strings.SplitN(args[0], "/", 2)
	}
	if len(args) != 2 || args[0] != "pod" && args[0] != "pods" {
		return pod, errors.New("missing pod: run numaform explain pod NAMESPACE/NAME")
	}
	namespace, name, ok := strings.Cut(args[1], "/")
	if !ok {
		namespace, name = corev1.NamespaceDefault, args[1]
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return pod, fmt.Errorf("pod %q: must be NAMESPACE/NAME", args[1])
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// explanation prints the cause first, and then the reason for each NodePool and host, with
// the free capacity of hosts and NUMA nodes.
func (w *printer) explanation(x *scheduling.Explanation) {
	state := "does not need a node"
	switch x.State {
	case scheduling.PodRefused:
		state = "cannot be placed"
	case scheduling.PodNeedsVM:
		state = "is pending"
	case scheduling.PodWaits:
		state = "waits"
	case scheduling.PodHasNode:
		state = "is not pending"
	}
	w.printf("Pod %s %s: %s.\n", x.Pod, state, x.Summary)
	for i := range x.Pools {
		pool := &x.Pools[i]
		w.heading("NodePool " + pool.NodePool)
		w.printf("  %s: %s\n", pool.Obstacle, pool.Reason)
		for j := range pool.Hosts {
			h := &pool.Hosts[j]
			switch {
			case h.View != nil && h.View.Lacks != "":
				lacks := h.View.Lacks
				if h.View.Fix != "" { // with a fix, Lacks is about the host, otherwise about the VM
					lacks = "it " + lacks
				}
				w.printf("\n  %s has no room for %s: %s\n", h.Host, h.InstanceType, lacks)
			case h.Reason != "":
				w.printf("\n  %s: %s\n", h.Host, strings.TrimPrefix(h.Reason, h.Host.String()+" "))
			default:
				w.printf("\n  %s has room for %s\n", h.Host, h.InstanceType)
			}
			if h.View == nil {
				continue
			}
			w.table(func(table io.Writer) {
				v := h.View
				fmt.Fprintln(table, "    \tCPUS\tRESERVED\tTAKEN\tFREE VCPUS\tFREE MEMORY")
				fmt.Fprintf(table, "    host\t%d\t%d\t%d\t%d\t%d of %d MiB\n", v.CPUs, v.Reserved, v.Taken, v.VCPUs, v.FreeMiB, v.MemoryMiB)
				for _, n := range v.Nodes {
					free := "-"
					if n.VCPUs != nil {
						free = strconv.Itoa(*n.VCPUs)
					}
					fmt.Fprintf(table, "    NUMA %d\t%d\t-\t%d\t%s\t%d of %d MiB\n", n.NUMANode, n.CPUs, n.Taken, free, n.FreeMiB, n.MemoryMiB)
				}
			})
		}
	}
}
