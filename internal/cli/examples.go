package cli

// examples returns example invocations by command, the most common first.
func examples() map[string]string {
	return map[string]string{
		"apply": `  numaform apply --kubeconfig ~/.kube/config         # for the pending pods of a cluster; asks for confirmation
  numaform apply -f manifests/ --auto-approve        # for the pods in files, without a terminal
  numaform apply -f manifests/ --approve DIGEST      # approves exactly one change, if the guard requires approval`,
		"approve": `  numaform approve workers-7f3a1c --hash HASH        # numaform plans prints the name and the hash
  numaform approve workers-7f3a1c                    # in a terminal: shows the diff and asks for confirmation`,
		"conformance": `  numaform conformance --pool kit --vmids 9000-9019 --template 100 --report report.md
  numaform conformance --list                        # the cases, with their sources`,
		"controller": `  numaform controller --config /etc/numaform/numaform.yaml
  numaform controller --mode observe --kubeconfig ~/.kube/config   # decides and plans without writing`,
		"convert": `  numaform convert kpp -f values.yaml -f manifests/ --out numaform   # writes numaform.yaml, manifests and secrets
  numaform convert kproximate --kubeconfig ~/.kube/config            # prints them
  numaform convert kubenodesmith -f nodesmith.yaml --template debian-13-k8s --out numaform`,
		"drift": `  numaform drift                                     # compares every VM and changes nothing
  numaform drift --repair --dry-run                  # shows the updates in place that would revert drift
  numaform drift --every 15m                         # repeats until interrupted`,
		"evacuate": `  numaform evacuate pve-2 --wait                     # replaces the nodes of a host on other hosts
  numaform evacuate pve-2 --end                      # allows nodes on the host again`,
		"explain":  `  numaform explain pod default/web-0                 # the reason of each NodePool, host and NUMA node`,
		"generate": `  numaform instance-types generate -c 1,2,4 -m 2,3,4 -s 30 --kubelet --system --eviction >instance-types.json`,
		"history": `  numaform history --since 24h
  numaform history workers-2001                      # all details of one node or one change`,
		"pause": `  numaform pause                                     # the controller starts no new changes until numaform resume`,
		"adopt": `  numaform adopt --nodepool workers --kubeconfig ~/.kube/config --dry-run   # all Nodes of karpenter-provider-proxmox
  numaform adopt default-x7k2p --nodepool workers --kubeconfig ~/.kube/config`,
		"status": `  numaform status                                    # VMs, hosts, the last change and problems
  numaform status --kubeconfig ~/.kube/config        # also pauses, evacuations and pending changes`,
		"vms":   `  numaform get vms -o json`,
		"hosts": `  numaform get hosts`,
		"plan": `  numaform plan --kubeconfig ~/.kube/config          # for the pending pods of a cluster
  numaform plan -f manifests/ -f pods.yaml           # for the pods in files, without a cluster
  numaform plan -f manifests/ --diff                 # also shows the diff of the node files
  numaform plan -f manifests/ --snapshot lab.json --no-engine --out review   # without Proxmox and engine: files only`,
		"plans": `  numaform plans                                     # changes that require approval, also decided ones
  numaform plans workers-7f3a1c                      # the diff of one change`,
		"policy": `  numaform policy show                               # effective rules and limits
  numaform policy test --policy default --policy mine.yaml cases/`,
		"reject": `  numaform reject workers-7f3a1c --reason "wait for the new host"`,
		"remove": `  numaform remove workers-2001 --kubeconfig ~/.kube/config --dry-run
  numaform remove workers-2001 workers-2002 --kubeconfig ~/.kube/config   # drained nodes; asks for confirmation`,
		"resume": `  numaform resume                                    # the controller continues`,
		"show": `  numaform policy show                               # effective rules and limits
  numaform policy show --shipped >mine.yaml          # a template for your own policy`,
		"test": `  numaform policy test examples/policy
  numaform policy test --policy default --policy mine.yaml cases/`,
		"undo": `  numaform undo --kubeconfig ~/.kube/config --dry-run
  numaform undo 20261121T101500Z-4f2a91c7 --kubeconfig ~/.kube/config   # numaform history lists the changes`,
		"version": `  numaform version`,
	}
}
