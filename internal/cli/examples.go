package cli

// examples returns example invocations by command, the most common first.
func examples() map[string]string {
	return map[string]string{
		"apply": `  numaform apply --kubeconfig ~/.kube/config         # for the pending pods of a cluster; asks first
  numaform apply -f manifests/ --auto-approve        # for the pods in files, without a terminal
  numaform apply -f manifests/ --approve DIGEST      # what the guard wants a person to see: exactly this`,
		"approve": `  numaform approve workers-7f3a1c --hash HASH        # numaform plans shows name and hash
  numaform approve workers-7f3a1c                    # at a terminal: shows the diff and asks`,
		"collect": `  numaform topology collect >pve-1.json              # on the host itself; then name the file under machines`,
		"conformance": `  numaform conformance --pool kit --vmids 9000-9019 --template 100 --report report.md
  numaform conformance --list                        # the cases, with their sources`,
		"controller": `  numaform controller --config /etc/numaform/numaform.yaml
  numaform controller --mode observe --kubeconfig ~/.kube/config   # decide and plan, and write nothing`,
		"doctor": `  numaform doctor                                    # what is missing, and the line that fixes it
  numaform doctor --smoke                            # make and remove one small VM, the whole road`,
		"drift": `  numaform drift                                     # read every VM, change nothing
  numaform drift --repair --dry-run                  # what would be reverted in place
  numaform drift --every 15m                         # again and again`,
		"evacuate": `  numaform evacuate pve-2 --wait                     # replace the nodes of a host elsewhere
  numaform evacuate pve-2 --end                      # the host may take nodes again`,
		"explain": `  numaform explain pod default/web-0                 # which NodePool, host and NUMA node refuse it, and why`,
		"history": `  numaform history --since 24h
  numaform history workers-2001                      # all about one node, or one change`,
		"init":  `  numaform init                                      # asks, writes numaform.yaml, prints the pveum lines`,
		"pause": `  numaform pause                                     # the controller starts nothing more until numaform resume`,
		"plan": `  numaform plan --kubeconfig ~/.kube/config          # for the pending pods of a cluster
  numaform plan -f manifests/ -f pods.yaml           # for the pods in files, with no cluster at all
  numaform plan -f manifests/ --diff                 # with the lines of the node files
  numaform plan -f manifests/ --snapshot lab.json --no-engine --out review   # no Proxmox, no engine: the files alone`,
		"plans": `  numaform plans                                     # what waits for a person
  numaform plans workers-7f3a1c                      # the whole diff of one`,
		"policy": `  numaform policy show                               # rules and limits in force
  numaform policy test --policy default --policy mine.yaml cases/`,
		"reject": `  numaform reject workers-7f3a1c --reason "wait for the new host"`,
		"remove": `  numaform remove workers-2001 --kubeconfig ~/.kube/config --dry-run
  numaform remove workers-2001 workers-2002 --kubeconfig ~/.kube/config   # drained nodes; asks first`,
		"resume": `  numaform resume                                    # the controller goes on`,
		"show": `  numaform policy show                               # rules and limits in force
  numaform policy show --shipped >mine.yaml          # as a beginning of your own`,
		"test": `  numaform policy test examples/policy
  numaform policy test --policy default --policy mine.yaml cases/`,
		"topology": `  numaform topology                                  # hosts, NUMA nodes, caches, who owns which CPU
  numaform topology --host pve-2 -o svg >pve-2.svg
  numaform topology -o json >lab.json                # what numaform plan --snapshot reads`,
		"undo": `  numaform undo --kubeconfig ~/.kube/config --dry-run
  numaform undo 20261121T101500Z-4f2a --kubeconfig ~/.kube/config   # numaform history shows the names`,
		"version": `  numaform version`,
	}
}
