package irq_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/agent/irq"
	"github.com/numaform/numaform/topology"
)

const device = "0000:41:00.0"

func tree(t *testing.T) irq.Tree {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"sys/bus/pci/devices/" + device + "/msi_irqs/101": "msix\n", "sys/kernel/irq/101/actions": "vfio-msix[1](" + device + ")\n",
		"sys/bus/pci/devices/" + device + "/msi_irqs/57": "msix\n", "sys/kernel/irq/57/actions": "vfio-msix[0](" + device + ")\n",
		"sys/bus/pci/devices/" + device + "/msi_irqs/58": "msix\n", "sys/kernel/irq/58/actions": "nvme0q1\n",
		"sys/bus/pci/devices/" + device + "/msi_irqs/59": "msix\n", "sys/kernel/irq/59/actions": "vfio-msi[0](0000:42:00.0)\n",
		"sys/bus/pci/devices/" + device + "/msi_irqs/60": "msix\n", "sys/kernel/irq/60/actions": "vfio-intx(" + device + ")\n",
		"sys/bus/pci/devices/" + device + "/msi_irqs/61": "msix\n", "sys/kernel/irq/61/actions": "\n",
		"sys/bus/pci/devices/" + device + "/msi_irqs/62": "msix\n", "sys/kernel/irq/62/actions": "vfio-msi[0](" + device + "),eth0\n",
		"sys/bus/pci/devices/" + device + "/msi_irqs/63": "msix\n",
		"sys/kernel/irq/64/actions":                      "vfio-msi[0](" + device + ")\n",
		"proc/irq/57/smp_affinity_list":                  "0-3,8\n", "proc/irq/58/smp_affinity_list": "all\n",
	} {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return irq.Tree{Root: root}
}

// TestOf checks that Of finds only interrupts that appear both in the device's directory and
// in the kernel's list of handlers.
func TestOf(t *testing.T) {
	t.Parallel()
	files := tree(t)
	got, err := files.Of(device)
	if diff := cmp.Diff([]int{57, 101}, got); err != nil || diff != "" {
		t.Errorf("error %v, interrupts (-want +got):\n%s", err, diff)
	}
	if got, err := files.Of("0000:43:00.0"); err != nil || len(got) > 0 {
		t.Errorf("a device without: %v, %v", got, err)
	}
	for name, hostile := range map[string]string{
		"a path": "../0000:41:00.0", "no domain": "41:00.0", "upper case": "0000:4A:00.0", "nothing": "", "function 8": "0000:41:00.8",
	} {
		if irq.KnownDevice(hostile) || files.Owns(hostile, 57) {
			t.Errorf("%s: %q is known", name, hostile)
		}
	}
	if files.Owns(device, 64) || files.Owns(device, -57) || !files.Owns(device, 57) {
		t.Error("Owns returns a wrong result")
	}
}

func TestMove(t *testing.T) {
	t.Parallel()
	files := tree(t)
	if got, err := files.CPUs(57); err != nil || !got.Equal(topology.CPUs(0, 1, 2, 3, 8)) {
		t.Errorf("CPUs %s, %v", got, err)
	}
	if err := files.Move(57, topology.CPUs(4, 5)); err != nil {
		t.Error(err)
	}
	if got, err := files.CPUs(57); err != nil || !got.Equal(topology.CPUs(4, 5)) {
		t.Errorf("CPUs %s, %v after the move", got, err)
	}
	if _, err := files.CPUs(58); err == nil {
		t.Error("garbage was read")
	}
	if err := files.Move(99, topology.CPUs(4)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing interrupt: %v", err)
	}
}
