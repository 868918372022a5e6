package guestsim_test

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/numaform/numaform/test/sim/guestsim"
)

// TestCapacity checks the capacity and the errors of Capacity. The memory may differ by 3 %
// from the MemTotal measured in Debian VMs on KVM.
func TestCapacity(t *testing.T) {
	t.Parallel()
	for memory, total := range map[string]float64{"2048": 1967, "4096": 3915, "8192": 7941, "16384": 15989, "32768": 32093} {
		list, err := guestsim.Capacity(map[string]string{
			"cores": "3", "sockets": "2", "memory": memory, "boot": "order=ide2;virtio0", "ide2": "none,media=cdrom", "virtio0": "local-lvm:x,size=1T",
		}, &kubeletv1beta1.KubeletConfiguration{MaxPods: 64})
		if err != nil {
			t.Fatal(err)
		}
		if got := float64(list.Memory().Value()) / (1 << 20); math.Abs(got-total)/total > 0.03 {
			t.Errorf("%s MiB: %.0f MiB usable, measured %.0f", memory, got, total)
		}
		if list.Cpu().Value() != 6 || list.Pods().Value() != 64 || list.StorageEphemeral().Value()>>30 != 1007 {
			t.Errorf("got %v", list)
		}
	}
	for name, config := range map[string]map[string]string{
		"cores": {"cores": "many", "boot": "order=scsi0", "scsi0": "x,size=1G"}, "no disk": {"boot": "order=net0"}, "size": {"boot": "order=scsi0", "scsi0": "x"},
	} {
		if _, err := guestsim.Capacity(config, &kubeletv1beta1.KubeletConfiguration{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAllocatable(t *testing.T) {
	t.Parallel()
	machine := map[string]string{"cores": "2", "memory": "4096", "boot": "order=scsi0", "scsi0": "x,size=10G"}
	// Bytes in the machine's capacity. The disk has 79 block groups, with two bitmaps each, and 9
	// copies of the superblock and the descriptors.
	const memory, disk = 3932 << 20, 9890<<20 - (79*2+9*369)*(4<<10)
	for _, tt := range []struct {
		name              string
		config            kubeletv1beta1.KubeletConfiguration
		cpu, memory, disk int64 // reduction of the capacity, in millicores and bytes
	}{
		{"kubelet's defaults", kubeletv1beta1.KubeletConfiguration{}, 0, 100 << 20, disk / 10},
		{"reserved twice", kubeletv1beta1.KubeletConfiguration{
			KubeReserved:   map[string]string{"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "1Gi", "pid": "1000"},
			SystemReserved: map[string]string{"cpu": "50m", "memory": "100Mi"},
		}, 150, 400 << 20, 1<<30 + disk/10},
		{"given thresholds replace all", kubeletv1beta1.KubeletConfiguration{EvictionHard: map[string]string{"memory.available": "10%"}}, 0, memory / 10, 0},
		{"or are merged", kubeletv1beta1.KubeletConfiguration{
			EvictionHard: map[string]string{"memory.available": "1Gi"}, MergeDefaultEvictionSettings: ptr.To(true),
		}, 0, 1 << 30, disk / 10},
		{"0% is none", kubeletv1beta1.KubeletConfiguration{EvictionHard: map[string]string{"memory.available": "0%"}}, 0, 0, 0},
		{"never below 0", kubeletv1beta1.KubeletConfiguration{KubeReserved: map[string]string{"memory": "1Ti"}}, 0, memory, disk / 10},
	} {
		whole, err := guestsim.Capacity(machine, &tt.config)
		if err != nil {
			t.Fatal(err)
		}
		left, err := guestsim.Allocatable(whole, &tt.config)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		taken := func(name corev1.ResourceName) int64 {
			quantity := whole[name]
			quantity.Sub(left[name])
			return quantity.MilliValue() / 1000
		}
		cpu := whole.Cpu().MilliValue() - left.Cpu().MilliValue()
		if near := func(a, b int64) bool { return a-b < 2 && b-a < 2 }; cpu != tt.cpu || !near(taken("memory"), tt.memory) || !near(taken("ephemeral-storage"), tt.disk) {
			t.Errorf("%s: %d millicores, %d and %d bytes are taken, want %d, %d, %d", tt.name, cpu, taken("memory"), taken("ephemeral-storage"), tt.cpu, tt.memory, tt.disk)
		}
	}
	for name, config := range map[string]kubeletv1beta1.KubeletConfiguration{
		"amount":     {KubeReserved: map[string]string{"cpu": "much"}},
		"resource":   {SystemReserved: map[string]string{"gpu": "1"}},
		"percentage": {EvictionHard: map[string]string{"memory.available": "101%"}},
	} {
		whole, err := guestsim.Capacity(machine, &config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := guestsim.Allocatable(whole, &config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
