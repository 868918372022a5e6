package guestsim

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

const (
	mebi = 1 << 20
	// defaultMaxPods is kubelet's default for maxPods.
	defaultMaxPods = 110
)

// Capacity returns the capacity that kubelet reports in a VM with this configuration in
// Proxmox. It is computed from facts about Linux, independently of numaform's prediction.
func Capacity(vm map[string]string, config *kubeletv1beta1.KubeletConfiguration) (corev1.ResourceList, error) {
	cores, err := number(vm, "cores", 1)
	if err != nil {
		return nil, err
	}
	sockets, err := number(vm, "sockets", 1)
	if err != nil {
		return nil, err
	}
	memory, err := number(vm, "memory", 512)
	if err != nil {
		return nil, err
	}
	disk, err := bootDisk(vm)
	if err != nil {
		return nil, err
	}
	pods := int64(config.MaxPods)
	if pods == 0 {
		pods = defaultMaxPods
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(cores*sockets, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(usableMemory(memory*mebi), resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(usableDisk(disk), resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(pods, resource.DecimalSI),
		"hugepages-1Gi":                 *resource.NewQuantity(0, resource.BinarySI),
		"hugepages-2Mi":                 *resource.NewQuantity(0, resource.BinarySI),
	}, nil
}

func number(config map[string]string, key string, otherwise int64) (int64, error) {
	text := strings.TrimPrefix(config[key], "current=")
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the VM's %s: %w", key, err)
	}
	return n, nil
}

// usableMemory returns Linux's MemTotal: the memory without 64 bytes of struct page for each
// page of 4 KiB, and without about 100 MiB for the kernel itself, its reserves, its hash
// tables and the firmware.
func usableMemory(bytes int64) int64 {
	return (bytes - bytes/64 - 100*mebi) &^ 0xfff
}

// usableDisk returns the size of the file system of Debian's cloud image on a disk, as statfs
// reports it: without the two boot partitions, 256 bytes of inode for each 16 KiB, two bitmaps
// of a block in each block group, and the journal of an image that was small when it was
// created. The groups 0, 1 and the powers of 3, 5 and 7 have a superblock and the descriptors
// of all groups. With the blocks reserved for further descriptors, these are 368 blocks,
// whatever the disk: mke2fs 1.47 reserves them for 1024 times the size of an image of 3 GiB.
// Linux has counted the reserved blocks as overhead since 2022 (ext4: fix overhead calculation
// to account for the reserved gdt blocks).
func usableDisk(bytes int64) int64 {
	const block, group = 4 << 10, 128 * mebi
	partition := bytes - 128*mebi
	groups := (partition + group - 1) / group
	copies := min(groups, 2)
	for _, base := range []int64{3, 5, 7} {
		for at := base; at < groups; at *= base {
			copies++
		}
	}
	return partition - groups*(2*mebi+2*block) - copies*(1+368)*block - 64*mebi
}

// bootDisk returns the size of the disk from which the VM boots.
func bootDisk(config map[string]string) (int64, error) {
	order := strings.TrimPrefix(config["boot"], "order=")
	for device := range strings.SplitSeq(order, ";") {
		drive := config[device]
		if drive == "" || strings.Contains(drive, "media=cdrom") {
			continue
		}
		_, size, _ := strings.Cut(drive, "size=")
		size, _, _ = strings.Cut(size, ",")
		quantity, err := resource.ParseQuantity(size + "i")
		if err != nil {
			return 0, fmt.Errorf("reading the size of the VM's %s: %w", device, err)
		}
		return quantity.Value(), nil
	}
	return 0, errors.New("reading the VM's boot disk: the boot order contains no disk")
}

// Allocatable returns the part of the capacity that kubelet leaves to pods.
func Allocatable(capacity corev1.ResourceList, config *kubeletv1beta1.KubeletConfiguration) (corev1.ResourceList, error) {
	result := maps.Clone(capacity)
	for name, reserved := range map[string]map[string]string{"kubeReserved": config.KubeReserved, "systemReserved": config.SystemReserved} {
		for key, text := range reserved {
			quantity, err := resource.ParseQuantity(text)
			if err != nil {
				return nil, fmt.Errorf("%s.%s: %w", name, key, err)
			}
			switch key {
			case "cpu", "memory", "ephemeral-storage":
				take(result, corev1.ResourceName(key), quantity)
			case "pid":
			default:
				return nil, fmt.Errorf("%s.%s cannot be reserved", name, key)
			}
		}
	}
	for signal, text := range evictionHard(config) {
		name, known := map[string]corev1.ResourceName{
			"memory.available": corev1.ResourceMemory, "nodefs.available": corev1.ResourceEphemeralStorage,
		}[signal]
		whole := capacity[name]
		quantity, err := threshold(text, whole.Value())
		if err != nil {
			return nil, fmt.Errorf("evictionHard.%s: %w", signal, err)
		}
		if known {
			take(result, name, quantity)
		}
	}
	return result, nil
}

// evictionHard returns the effective thresholds. They include kubelet's defaults only if no
// thresholds are given, or if mergeDefaultEvictionSettings is set.
func evictionHard(config *kubeletv1beta1.KubeletConfiguration) map[string]string {
	merge := config.MergeDefaultEvictionSettings != nil && *config.MergeDefaultEvictionSettings
	if config.EvictionHard != nil && !merge {
		return config.EvictionHard
	}
	thresholds := map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
		"imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
	maps.Copy(thresholds, config.EvictionHard)
	return thresholds
}

// threshold parses an amount, or a percentage of the whole.
func threshold(text string, whole int64) (resource.Quantity, error) {
	percent, ok := strings.CutSuffix(text, "%")
	if !ok {
		return resource.ParseQuantity(text)
	}
	share, err := strconv.ParseFloat(percent, 32)
	if err != nil || share < 0 || share > 100 {
		return resource.Quantity{}, fmt.Errorf("%q is not a percentage", text)
	}
	if share == 0 || share == 100 { // kubelet ignores these
		return resource.Quantity{}, nil
	}
	return *resource.NewQuantity(int64(float64(whole)*share/100), resource.BinarySI), nil
}

func take(list corev1.ResourceList, name corev1.ResourceName, amount resource.Quantity) {
	left := list[name]
	left.Sub(amount)
	if left.Sign() < 0 {
		left = *resource.NewQuantity(0, left.Format)
	}
	list[name] = left
}
