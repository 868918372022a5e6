package generator_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// pinned pins the VM to host CPUs 4 to 7.
func pinned(vm *fleet.VM) {
	vm.Policy, vm.PinWith = fleet.PolicyDedicated, fleet.PinWithAffinity
	vm.CPUs, vm.VCPUPins = topology.CPUs(4, 5, 6, 7), []int{4, 5, 6, 7}
}

// split gives a VM two cells with two guest CPUs each.
func split(vm *fleet.VM) {
	vm.Policy = fleet.PolicyNUMA
	vm.Cells = []topology.NUMACell{
		{GuestCPUs: topology.CPUs(0, 1), HostNodes: topology.CPUs(0), MemoryMiB: 4096, Policy: topology.NUMABind},
		{GuestCPUs: topology.CPUs(2, 3), HostNodes: topology.CPUs(1), MemoryMiB: 4096, Policy: topology.NUMABind},
	}
}

// static returns a network device with an address.
func static(cidr string) []fleet.Network {
	return []fleet.Network{{Bridge: "vmbr0", Addresses: []fleet.Address{{Pool: "nodes", CIDR: cidr}}}}
}

// seeded gives a VM a seed.
func seeded(vm *fleet.VM) {
	vm.SeedStorage, vm.Seed = fleet.AnySeedStorage, fleet.SeedVolume("local", "prod", vm.VMID, vm.Key)
}

// TestRefusesVM checks the messages for invalid values of a VM.
func TestRefusesVM(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*fleet.VM)
		want   string
	}{
		"address":                         {func(v *fleet.VM) { v.Networks = static("10.0.0.7") }, `networks[0].addresses[0].address "10.0.0.7": must be an address with its prefix length`},
		"address, not as netip writes it": {func(v *fleet.VM) { v.Networks = static("fd00:0::7/64") }, `networks[0].addresses[0].address "fd00:0::7/64": must be`},
		"gateway": {func(v *fleet.VM) {
			v.Networks = static("10.0.0.7/24")
			v.Networks[0].Addresses[0].Gateway = "router"
		}, `networks[0].addresses[0].gateway and dns_servers "router": must be an IP address`},
		"pool":               {func(v *fleet.VM) { v.Pool = "Workers" }, `pool: nodepool "Workers"`},
		"pool with newline":  {func(v *fleet.VM) { v.Pool = "a\nb" }, `nodepool "a\nb"`},
		"name":               {func(v *fleet.VM) { v.Name = "other" }, `name "other": must be workers-2001`},
		"vmid":               {func(v *fleet.VM) { v.VMID = 99 }, "vmid: 99 is out of range: must be from 100 to"},
		"vmid range":         {func(v *fleet.VM) { v.VMIDs = fleet.VMIDRange{Lower: 2002, Upper: 2010} }, "vmid: 2001 is not in vmids 2002 to 2010, the range of its class"},
		"empty vmid range":   {func(v *fleet.VM) { v.VMIDs = fleet.VMIDRange{Lower: 2001} }, "vmids: vmid_range 2001 to 0: must be"},
		"key":                {func(v *fleet.VM) { v.Key = "k e y" }, `key "k e y": must be 32 hex digits`},
		"module path":        {func(v *fleet.VM) { v.Module = "../../../etc" }, `module "../../../etc": must be the 16 hex digits`},
		"class line break":   {func(v *fleet.VM) { v.NodeClass = "a\nb" }, `node_class "a\nb": has a line break`},
		"class not UTF-8":    {func(v *fleet.VM) { v.NodeClass = "\xff" }, `node_class "\xff": is not valid UTF-8`},
		"class not composed": {func(v *fleet.VM) { v.NodeClass = "e\u0301" }, "Normalization Form C"},
		"class right to left": {
			func(v *fleet.VM) { v.NodeClass = "a\u202eb" },
			`node_class "a\u202eb": has a line break or another control character`,
		},
		"reason too long":   {func(v *fleet.VM) { v.Reason = strings.Repeat("x", 1025) }, "reason: has 1025 bytes: must have at most 1024"},
		"reason with space": {func(v *fleet.VM) { v.Reason = "x " }, `reason "x ": begins or ends with a space`},
		"no type":           {func(v *fleet.VM) { v.InstanceType = "" }, "instance_type: is empty"},
		"policy":            {func(v *fleet.VM) { v.Policy = "Best" }, `policy "Best": must be one of`},
		"emulator": {func(v *fleet.VM) {
			v.Policy, v.PinWith, v.Emulator = fleet.PolicyDedicated, fleet.PinWithHostAgent, "host"
		}, `emulator "host": must be one of`},
		"emulator unpinned": {func(v *fleet.VM) { v.Emulator = fleet.EmulatorShared; v.PinWith = fleet.PinWithAffinity }, `emulator "shared": must be empty, because the host agent does not pin the VM`},
		"pin_with":          {func(v *fleet.VM) { v.PinWith = "Hope" }, `pin_with "Hope": must be one of`},
		"label key":         {func(v *fleet.VM) { v.Labels = map[string]string{"a=b": "c"} }, `labels "a=b=c": must be a Kubernetes label`},
		"label value":       {func(v *fleet.VM) { v.Labels = map[string]string{"a": "${x}"} }, `labels "a=${x}": must be a Kubernetes label`},
		"clone":             {func(v *fleet.VM) { v.Clone = "" }, "clone: is empty: must be one of"},
		"vcpus":             {func(v *fleet.VM) { v.VCPUs = 0 }, "vcpus: 0: must be at least 1"},
		"memory":            {func(v *fleet.VM) { v.MemoryMiB = 1 }, "memory_mib: 1: must be from 64"},
		"overcommit":        {func(v *fleet.VM) { v.Overcommit = math.NaN() }, "overcommit: NaN"},
		"memory overcommit": {func(v *fleet.VM) { v.MemoryOvercommit = 2.01 }, "memory_overcommit: 2.01: must be a ratio from 1 to 2, and only of a VM with policy Shared"},
		"memory not shared": {func(v *fleet.VM) { v.MemoryOvercommit, v.Policy = 1.5, fleet.PolicyNUMA }, "memory_overcommit: 1.5"},
		"memory NaN":        {func(v *fleet.VM) { v.MemoryOvercommit = math.NaN() }, "memory_overcommit: NaN"},
		"disk":              {func(v *fleet.VM) { v.DiskGiB = -1 }, "disk_gib: -1"},
		"demand":            {func(v *fleet.VM) { v.Demand.Pods = -1 }, "demand:"},
		"candidates":        {func(v *fleet.VM) { v.Hosts = []topology.HostID{somewhere} }, "hosts: [region-1/pve-1]: must be empty"},
		"storage":           {func(v *fleet.VM) { v.Clone, v.Storage = fleet.CloneFull, "a b" }, `storage "a b"`},
		"linked elsewhere":  {func(v *fleet.VM) { v.Storage = "fast" }, `storage "fast": a linked clone must stay on its template's storage "local"`},
		"cpu type":          {func(v *fleet.VM) { v.CPUType = "" }, "cpu_type: is empty: must be a Proxmox CPU type"},
		"bridge":            {func(v *fleet.VM) { v.Networks = []fleet.Network{{}} }, "networks[0].bridge: is empty"},
		"model":             {func(v *fleet.VM) { v.Networks = []fleet.Network{{Bridge: "b", Model: "fast"}} }, `networks[0].model "fast"`},
		"vlan":              {func(v *fleet.VM) { v.Networks = []fleet.Network{{Bridge: "b", VLAN: 4095}} }, "networks[0].vlan: 4095"},
		"mtu":               {func(v *fleet.VM) { v.Networks = []fleet.Network{{Bridge: "b", MTU: 2}} }, "networks[0].mtu: 2"},
		"queues":            {func(v *fleet.VM) { v.Networks = []fleet.Network{{Bridge: "b", Queues: 65}} }, "networks[0].queues: 65: must be from 1 to 64"},
		"rate":              {func(v *fleet.VM) { v.Networks = []fleet.Network{{Bridge: "b", RateMBps: -1}} }, "networks[0].rate_mbps: -1"},
		"trunk":             {func(v *fleet.VM) { v.Networks = []fleet.Network{{Bridge: "b", Trunks: []int{1, 0}}} }, "networks[0].trunks: 0: must be from 1 to 4094"},
		"machine":           {func(v *fleet.VM) { v.Hardware = &fleet.Hardware{Machine: "q35,viommu=intel"} }, `hardware.machine "q35,viommu=intel": must be a machine type`},
		"display":           {func(v *fleet.VM) { v.Hardware = &fleet.Hardware{Display: "matrix"} }, `hardware.display "matrix": must be one of`},
		"display size":      {func(v *fleet.VM) { v.Hardware = &fleet.Hardware{DisplayMiB: 3} }, "hardware.display_mib: 3: must be from 4 to 512"},
		"missing port":      {func(v *fleet.VM) { v.Hardware = &fleet.Hardware{Display: "serial3"} }, `hardware.display "serial3": the template has no such serial port`},
		"CPU flag":          {func(v *fleet.VM) { v.Hardware = &fleet.Hardware{CPUFlags: []string{"+aes;+x"}} }, `hardware.cpu_flags[0] "+aes;+x"`},
		"watchdog": {func(v *fleet.VM) {
			v.Hardware = &fleet.Hardware{Watchdog: &fleet.Watchdog{Model: "i6300esb", Action: "halt"}}
		}, `hardware.watchdog.action "halt"`},
		"many networks": {func(v *fleet.VM) { v.Networks = make([]fleet.Network, 33) }, "networks: has 33 entries"},
		"tag":           {func(v *fleet.VM) { v.Tags = []string{"a", "Team A"} }, `tags[1] "Team A": must have lower case`},
		"group":         {func(v *fleet.VM) { v.SecurityGroups = []string{"1"} }, `security_groups[0] "1"`},
		"group without effect": {func(v *fleet.VM) {
			v.SecurityGroups, v.Networks = []string{"k8s"}, []fleet.Network{{Bridge: "vmbr0"}}
		}, "no network has firewall: true"},
		"group of no device": {func(v *fleet.VM) {
			v.SecurityGroups, v.Networks = []string{"k8s@net1"}, []fleet.Network{{Bridge: "vmbr0", Firewall: true}}
		}, `security_groups[0] "k8s@net1": there is no network device net1 with firewall: true`},
		"group of an open device": {func(v *fleet.VM) {
			v.SecurityGroups, v.Networks = []string{"k8s@net1"}, []fleet.Network{{Bridge: "vmbr0", Firewall: true}, {Bridge: "vmbr1"}}
		}, `security_groups[0] "k8s@net1": there is no network device net1`},
		"group of a bridge": {func(v *fleet.VM) { v.SecurityGroups = []string{"k8s@vmbr0"} }, `security_groups[0] "k8s@vmbr0": must have 2 to 18`},
		"resource pool":     {func(v *fleet.VM) { v.ResourcePool = "a/b/c/d" }, `resource_pool "a/b/c/d"`},
		"l3":                {func(v *fleet.VM) { v.L3 = []int{topology.Unknown} }, "l3: [-1]"},
		"pins of unpinned":  {func(v *fleet.VM) { v.CPUs = topology.CPUs(1) }, "cpus: 1: policy Shared does not pin CPUs"},
		"pinned by nothing": {func(v *fleet.VM) { pinned(v); v.PinWith = "" }, "pin_with: is empty"},
		"too few pins":      {func(v *fleet.VM) { pinned(v); v.VCPUPins = v.VCPUPins[:3] }, "vcpu_pins: [4 5 6]: must contain each of the 4 CPUs 4-7 once"},
		"pin given twice":   {func(v *fleet.VM) { pinned(v); v.VCPUPins = []int{4, 4, 5, 6} }, "vcpu_pins:"},
		"negative pin":      {func(v *fleet.VM) { pinned(v); v.CPUs, v.VCPUPins = topology.CPUs(-1, 5, 6, 7), []int{5, 6, 7, -1} }, "must not be negative"},
		"cell memory":       {func(v *fleet.VM) { split(v); v.Cells[0].MemoryMiB++ }, "cells: have 8193 MiB in total: must be the VM's 8192"},
		"small cell":        {func(v *fleet.VM) { split(v); v.Cells[0].MemoryMiB, v.Cells[1].MemoryMiB = 63, 8129 }, "cells[0].memory_mib: 63: must be from 64"},
		"cell without node": {func(v *fleet.VM) { split(v); v.Cells[0].HostNodes = topology.CPUs() }, "cells[0].host_nodes:"},
		"cell policy":       {func(v *fleet.VM) { split(v); v.Cells[1].Policy = "strict" }, `cells[1].policy "strict"`},
		"huge pages":        {func(v *fleet.VM) { split(v); v.HugePages = "4Mi" }, `huge_pages "4Mi": must be one of`},
		"half a MAC":        {func(v *fleet.VM) { v.Networks = []fleet.Network{{Bridge: "a", MAC: "BC:24:11"}} }, `networks[0].mac "BC:24:11": must be a unicast address`},
		"MAC of a group":    {func(v *fleet.VM) { v.Networks = []fleet.Network{{Bridge: "a", MAC: "01:24:11:00:00:01"}} }, `networks[0].mac "01:24:11:00:00:01"`},
		"slot twice":        {func(v *fleet.VM) { dataDisk("scsi1", 1, "a")(v); dataDisk("scsi1", 1, "a")(v) }, `data_disks[1].interface "scsi1": must be an unused SCSI slot`},
		"the boot disk's":   {dataDisk("scsi0", 1, "a"), `data_disks[0].interface "scsi0": must be an unused SCSI slot`},
		"no slot":           {dataDisk("", 1, "a"), "data_disks[0].interface: is empty"},
		"a second's":        {func(v *fleet.VM) { dataDisk("scsi1", 1, "a")(v); dataDisk("", 1, "a")(v) }, "data_disks[1].interface: is empty"},
		"data disk's size":  {dataDisk("scsi1", 0, "a"), "data_disks[0].size_gib: 0: must be from 1"},
		"its storage":       {dataDisk("scsi1", 1, "a:b"), `data_disks[0].storage "a:b"`},
		"timeouts":          {func(v *fleet.VM) { v.Timeouts.Start = -1 }, "timeouts: {Create:0 Start:-1 Delete:0}: must be seconds from 0"},
		"mapping":           {func(v *fleet.VM) { v.PCIDevices = []fleet.PCIDevice{{Mapping: "0000:01:00.0"}} }, `pci_devices[0].mapping "0000:01:00.0": must be the name of a resource mapping`},
		"mediated device":   {func(v *fleet.VM) { v.PCIDevices = []fleet.PCIDevice{{Mapping: "gpu", MDev: "a,romfile=b"}} }, `pci_devices[0].mdev "a,romfile=b": must be a type of mediated device`},
		"too many devices":  {func(v *fleet.VM) { v.PCIDevices = make([]fleet.PCIDevice, 17) }, "pci_devices: has 17 entries"},
		"pages of no node":  {func(v *fleet.VM) { v.HugePages = fleet.HugePages2Mi }, "cells: are missing: huge pages require"},
		"pages of two nodes": {func(v *fleet.VM) {
			split(v)
			v.HugePages, v.Cells[1].HostNodes = fleet.HugePages2Mi, topology.CPUs(0, 1)
		}, "cells[1].host_nodes: 0-1: with huge pages, each cell must have one NUMA node"},
		"parts of pages": {func(v *fleet.VM) {
			split(v)
			v.HugePages, v.Cells[0].MemoryMiB, v.Cells[1].MemoryMiB = fleet.HugePages1Gi, 4095, 4097
		}, "cells[0].memory_mib: 4095 is not a multiple of 1024"},
		"spread":              {func(v *fleet.VM) { v.Spread = "Racks" }, `spread "Racks": must be one of`},
		"guest CPU twice":     {func(v *fleet.VM) { split(v); v.Cells[1].GuestCPUs = topology.CPUs(1, 2) }, "have guest CPUs [0 1 1 2]"},
		"guest CPU missing":   {func(v *fleet.VM) { split(v); v.Cells[1].GuestCPUs = topology.CPUs(2, 4) }, "must contain each from 0 to 3 once"},
		"many cells":          {func(v *fleet.VM) { v.Cells = make([]topology.NUMACell, 9) }, "cells: has 9 entries"},
		"template":            {func(v *fleet.VM) { v.Source.VMID = 0 }, "source.vmid: 0: must be the VMID of template debian on host region-1/pve-1"},
		"template number":     {func(v *fleet.VM) { v.TemplateVMID = -1 }, "template_vmid: -1: must be the VMID of a template"},
		"template below":      {func(v *fleet.VM) { v.Source.VMID = fleet.MinVMID - 1 }, "source.vmid: 99"},
		"template above":      {func(v *fleet.VM) { v.Source.VMID = fleet.MaxVMID + 1 }, "source.vmid: 1000000000"},
		"template is itself":  {func(v *fleet.VM) { v.Source.VMID = v.VMID }, "source.vmid: 2001"},
		"source is its host":  {func(v *fleet.VM) { v.Source.Host = "pve-1" }, "source.host: pve-1: must be empty for a template on the VM's host"},
		"source of no host":   {func(v *fleet.VM) { v.Source.Host = "pve-2/../x" }, `source.host "pve-2/../x": must be the name of the host with the template`},
		"template's disk":     {func(v *fleet.VM) { v.Source.DiskGiB = -1 }, "source.disk_gib: -1"},
		"growing nothing":     {func(v *fleet.VM) { v.DiskGiB, v.Source.DiskInterface = 40, "" }, "source.disk_interface: is empty: must be the slot"},
		"growing nowhere":     {func(v *fleet.VM) { v.DiskGiB, v.Source.Storage = 40, "" }, "source.storage: is empty: must be the storage of the boot disk"},
		"option name":         {func(v *fleet.VM) { v.Source.Options = map[string]string{"a\nb": ""} }, `source.options "a\nb"`},
		"option for":          {func(v *fleet.VM) { v.Source.Options = map[string]string{"for": ""} }, `source.options "for"`},
		"option value":        {func(v *fleet.VM) { v.Source.Options = map[string]string{"vga": "a\x00"} }, "source.options.vga"},
		"hookscript":          {func(v *fleet.VM) { v.Source.Options = map[string]string{"hookscript": "x"} }, "run qm set 9000 --delete hookscript"},
		"template's affinity": {func(v *fleet.VM) { v.Source.Options = map[string]string{"affinity": "1"} }, "run qm set 9000 --delete affinity"},
		"serial gap":          {func(v *fleet.VM) { v.Source.Options = map[string]string{"serial1": "socket"} }, "serial0 is missing"},
		"seed nowhere":        {func(v *fleet.VM) { v.SeedStorage = "*" }, "seed: is empty: must be STORAGE:iso/numaform-prod-2001-"},
		"seed not requested":  {func(v *fleet.VM) { seeded(v); v.SeedStorage = "" }, "seed_storage: is empty"},
		"seed elsewhere":      {func(v *fleet.VM) { seeded(v); v.SeedStorage = "other" }, "must be on the seed storage other"},
		"seed storage":        {func(v *fleet.VM) { seeded(v); v.SeedStorage = "a b" }, `seed_storage "a b"`},
		"seed of another VM":  {func(v *fleet.VM) { seeded(v); v.Seed = fleet.SeedVolume("local", "prod", 2002, v.Key) }, "must be local:iso/numaform-prod-2001-"},
		"seed of another key": {func(v *fleet.VM) { seeded(v); v.Seed = fleet.SeedVolume("local", "prod", 2001, "ffffffff") }, "which contains cluster ID, VMID and key"},
		"seed of another":     {func(v *fleet.VM) { seeded(v); v.Seed = fleet.SeedVolume("local", "test", 2001, v.Key) }, "which contains cluster ID, VMID and key"},
		"seed path":           {func(v *fleet.VM) { seeded(v); v.Seed = "local:iso/../" + v.Seed }, "which contains cluster ID, VMID and key"},
		"display memory":      {func(v *fleet.VM) { v.Source.Options = map[string]string{"vga": "std,memory=x"} }, "memory must be a number"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := vmAt(somewhere, 2001)
			c.change(&vm)
			checkRefused(t, fleetOf(vm), c.want)
		})
	}
}

// TestAdoptedIsAsItWas checks that Render accepts values of an adopted VM that the provider
// would refuse for a new one.
func TestAdoptedIsAsItWas(t *testing.T) {
	t.Parallel()
	vm := vmAt(somewhere, 2001)
	vm.Module, vm.Template, vm.Source = modules.Adopted, "", fleet.Source{}
	split(&vm)
	vm.Cells[0].MemoryMiB, vm.Cells[1].MemoryMiB = 32, 8160
	if _, err := generator.Render(fleetOf(vm)); err != nil {
		t.Error(err)
	}
}

// TestTemplateVMIDs checks that Render accepts the smallest and the largest VMID of a
// template.
func TestTemplateVMIDs(t *testing.T) {
	t.Parallel()
	for _, vmid := range []fleet.VMID{fleet.MinVMID, fleet.MaxVMID} {
		vm := vmAt(somewhere, 2001)
		vm.Source.VMID = vmid
		if _, err := generator.Render(fleetOf(vm)); err != nil {
			t.Errorf("template %d: %v", vmid, err)
		}
	}
}

// checkRefused checks that Render rejects the fleet with an error that names a field and
// contains the text.
func checkRefused(t *testing.T, f fleet.Fleet, want string) {
	t.Helper()
	files, err := generator.Render(f)
	if err == nil || files != nil {
		t.Fatalf("rendered %d files, want an error with %q", len(files), want)
	}
	var field *generator.FieldError
	if !errors.As(err, &field) {
		t.Errorf("error names no field: %v", err)
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("error:\n%v\nwant:\n%s", err, want)
	}
}

func TestRefusesFleet(t *testing.T) {
	t.Parallel()
	backend := func(kind string, config ...string) func(*fleet.Fleet) {
		return func(f *fleet.Fleet) {
			f.Backend = fleet.Backend{Type: kind, Config: map[string]string{}}
			for i := 0; i < len(config); i += 2 {
				f.Backend.Config[config[i]] = config[i+1]
			}
		}
	}
	endpoint := func(url string) func(*fleet.Fleet) {
		return func(f *fleet.Fleet) { f.Regions[0].Endpoint = url }
	}
	at := func(host topology.HostName) func(*fleet.Fleet) {
		return func(f *fleet.Fleet) { f.Hosts = append(f.Hosts, topology.HostID{Region: "region-1", Host: host}) }
	}
	cases := map[string]struct {
		change func(*fleet.Fleet)
		want   string
	}{
		"region twice":      {func(f *fleet.Fleet) { f.Regions = append(f.Regions, f.Regions[0]) }, `region "region-1": is a duplicate`},
		"region unknown":    {func(f *fleet.Fleet) { f.Regions = nil }, "is not a region of the fleet"},
		"region reserved":   {func(f *fleet.Fleet) { f.Regions[0].Name = "modules" }, `region "modules": must not be modules`},
		"region path":       {func(f *fleet.Fleet) { f.Regions[0].Name = "../x" }, `region "../x"`},
		"host path":         {at("a/b"), `host "a/b": is the name of a directory`},
		"host reserved":     {at("templates"), `host "templates": must not be templates`},
		"host too long":     {at(topology.HostName(strings.Repeat("h", 64))), "at most 63"},
		"endpoint http":     {endpoint("http://pve-1:8006/"), "must have the form https://host:port/"},
		"endpoint path":     {endpoint("https://pve-1:8006/api2/json"), "without a path"},
		"endpoint secret":   {endpoint("https://root:geheim@pve-1:8006/"), "set PROXMOX_VE_API_TOKEN"},
		"backend type":      {backend("k8s s"), `fleet.backend.type "k8s s": must be a Terraform backend`},
		"backend without":   {backend("", "path", "x"), "fleet.backend.type: is empty"},
		"backend setting":   {backend("s3", "a\nb", "x"), `fleet.backend.config "a\nb"`},
		"backend value":     {backend("s3", "bucket", "a\nb"), "fleet.backend.config.bucket"},
		"pg credential":     {backend("pg", "conn_str", "geheim"), "set the environment variable PG_CONN_STR"},
		"s3 credential":     {backend("s3", "secret_key", "geheim"), "AWS_SECRET_ACCESS_KEY"},
		"http credential":   {backend("http", "address", "https://h/", "password", "geheim"), "TF_HTTP_PASSWORD"},
		"kube credential":   {backend("kubernetes", "token", "geheim"), "KUBE_TOKEN"},
		"other credential":  {backend("oss", "security_token", "geheim"), "looks like a credential"},
		"secret in URL":     {backend("http", "address", "https://u:geheim@h/"), "is a URL with a user or password"},
		"secret in bad URL": {backend("http", "address", "https://u:geheim@h:x y/%"), "is a URL with a user or password"},
		"suffix":            {backend("kubernetes", "secret_suffix", "x"), "is set by numaform for each host: remove it"},
		"http nowhere":      {backend("http"), "fleet.backend.config.address: is empty"},
		"one state":         {backend("oss", "key", "terraform.tfstate"), "write {state} into that setting"},
		"same name": {func(f *fleet.Fleet) {
			other := vmAt(topology.HostID{Region: "other", Host: "pve-1"}, 2001)
			f.Regions = append(f.Regions, fleet.Region{Name: "other", Endpoint: "https://other:8006/"})
			f.VMs = append(f.VMs, other)
		}, `name "workers-2001": is also used by VM workers-2001`},
		"same key": {func(f *fleet.Fleet) {
			f.VMs = append(f.VMs, vmAt(somewhere, 2002))
			f.VMs[1].Key = f.VMs[0].Key
		}, "is also used by VM workers-2001"},
		"same address": {func(f *fleet.Fleet) {
			f.VMs = append(f.VMs, vmAt(somewhere, 2002))
			for i := range f.VMs {
				f.VMs[i].Networks = []fleet.Network{{Bridge: "vmbr0", Addresses: []fleet.Address{{Pool: "nodes", CIDR: "10.0.0.7/24"}}}}
			}
		}, `address "10.0.0.7": is also used by VM workers-2001`},
		"same vmid": {func(f *fleet.Fleet) {
			other := vmAt(topology.HostID{Region: "region-1", Host: "pve-2"}, 2001)
			other.Pool, other.Name, other.Key = "b", "b-2001", fleet.Key(strings.Repeat("f", 32))
			f.VMs = append(f.VMs, other)
		}, `vmid "region-1/2001"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fleetOf(vmAt(somewhere, 2001))
			c.change(&f)
			checkRefused(t, f, c.want)
			if _, err := generator.Render(f); strings.Contains(err.Error(), "geheim") {
				t.Errorf("error repeats a secret: %v", err)
			}
		})
	}
}

func TestRefusesClusterID(t *testing.T) {
	t.Parallel()
	f := fleetOf()
	f.ClusterID = "Prod"
	if _, err := generator.Render(f); err == nil || !strings.Contains(err.Error(), `clusterID "Prod"`) {
		t.Errorf("Render: %v", err)
	}
}

// dataDisk adds a data disk to a VM.
func dataDisk(slot string, gib int64, storage string) func(*fleet.VM) {
	return func(v *fleet.VM) {
		v.DataDisks = append(v.DataDisks, fleet.DataDisk{Interface: slot, SizeGiB: gib, Storage: storage})
	}
}
