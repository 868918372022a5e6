package pvesim_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/luthermonson/go-proxmox"

	"github.com/numaform/numaform/test/sim/pvesim"
)

func TestGoProxmoxReads(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	ctx := t.Context()
	api := proxmox.NewClient(c.server.URL()+"/api2/json", proxmox.WithHTTPClient(c.http), proxmox.WithAPIToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret))
	nodes, err := api.Nodes(ctx)
	if err != nil || len(nodes) != 2 || nodes[0].Node != "pve-1" || nodes[0].MaxCPU != 16 || nodes[0].Status != "online" {
		t.Fatalf("nodes %+v: %v", nodes, err)
	}
	node, err := api.Node(ctx, "pve-1")
	if err != nil {
		t.Fatal(err)
	}
	if node.CPUInfo.Sockets != 2 || node.CPUInfo.Cores != 8 || node.CPUInfo.CPUs != 16 || node.Memory.Total != 64<<30 {
		t.Errorf("node %+v", node)
	}
	vms, err := node.VirtualMachines(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int]string{}
	for _, vm := range vms {
		got[int(vm.VMID)] = vm.Name + " " + vm.Status
		if bool(vm.Template) != (vm.VMID == 9000) {
			t.Errorf("vm %d: template %v", vm.VMID, vm.Template)
		}
	}
	if diff := cmp.Diff(map[int]string{100: "database running", 9000: "debian stopped"}, got); diff != "" {
		t.Errorf("vms (-want +got):\n%s", diff)
	}
	vm, err := node.VirtualMachine(ctx, 100)
	if err != nil {
		t.Fatal(err)
	}
	conf := vm.VirtualMachineConfig
	if conf.Affinity != "0-1" || conf.Tags != "prod" || vm.Status != "running" {
		t.Errorf("vm %+v, config %+v", vm, conf)
	}
	containers, err := node.Containers(ctx)
	if err != nil || len(containers) != 1 || containers[0].Name != "dns" {
		t.Errorf("containers %+v: %v", containers, err)
	}
	if _, err := node.Container(ctx, 200); err != nil {
		t.Errorf("container: %v", err)
	}
	all, err := api.Cluster(ctx)
	if err != nil || all.Name != "lab" || all.Quorate != 1 || len(all.Nodes) != 2 {
		t.Errorf("cluster %+v: %v", all, err)
	}
	if id, err := all.NextID(ctx); err != nil || id != 101 {
		t.Errorf("next id %d: %v", id, err)
	}
	resources, err := all.Resources(ctx, "vm")
	if err != nil || len(resources) != 4 {
		t.Errorf("resources %+v: %v", resources, err)
	}
	if _, err := node.Report(ctx); err != nil {
		t.Errorf("report: %v", err)
	}
	if _, err := api.Permissions(ctx, nil); err != nil {
		t.Errorf("permissions: %v", err)
	}
}

func TestGoProxmoxWrites(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	ctx := t.Context()
	api := proxmox.NewClient(c.server.URL()+"/api2/json", proxmox.WithHTTPClient(c.http),
		proxmox.WithCredentials(&proxmox.Credentials{Username: "root@pam", Password: pvesim.DefaultRootPassword}))
	node, err := api.Node(ctx, "pve-1")
	if err != nil {
		t.Fatal(err)
	}
	storage, err := node.Storage(ctx, "local")
	if err != nil {
		t.Fatal(err)
	}
	seed := bytes.Repeat([]byte("seed"), 1000)
	var upid proxmox.UPID
	path := "/nodes/pve-1/storage/local/upload"
	if err := api.UploadReader(path, map[string]string{"content": "iso"}, "numaform-a-2001-1.iso", bytes.NewReader(seed), int64(len(seed)), &upid); err != nil {
		t.Fatal(err)
	}
	if exit := c.root().await(string(upid)); exit != "OK" {
		t.Fatal(exit)
	}
	data, ok := c.server.VolumeData("pve-1", "local:iso/numaform-a-2001-1.iso")
	if !ok || !bytes.Equal(data, seed) {
		t.Errorf("uploaded %d bytes, want %d", len(data), len(seed))
	}
	content, err := storage.GetContent(ctx)
	if err != nil || len(content) != 1 || content[0].Volid != "local:iso/numaform-a-2001-1.iso" {
		t.Errorf("content %+v: %v", content, err)
	}
	task, err := storage.DeleteContent(ctx, "local:iso/numaform-a-2001-1.iso")
	if err != nil {
		t.Fatal(err)
	}
	if exit := c.root().await(string(task.UPID)); exit != "OK" {
		t.Error(exit)
	}
	if left := c.server.Volumes("pve-1"); slices.Contains(left, "local:iso/numaform-a-2001-1.iso") {
		t.Error("the iso still exists")
	}
	template, err := node.VirtualMachine(ctx, 9000)
	if err != nil {
		t.Fatal(err)
	}
	id, clone, err := template.Clone(ctx, &proxmox.VirtualMachineCloneOptions{NewID: 150, Name: "x"})
	if err != nil || id != 150 {
		t.Fatalf("clone %d: %v", id, err)
	}
	if exit := c.root().await(string(clone.UPID)); exit != "OK" {
		t.Error(exit)
	}
}
