package conformance_test

// differs are the cases in which the simulator is known to be wrong, with what it does
// instead. A case that becomes equal must leave this list.
var differs = map[string]string{
	"access/a parameter that is in the path too":                 "has a text of its own",
	"cluster/the default zone is a network":                      "has type sdn",
	"cluster/the pool of a VM needs Pool.Audit":                  "shows it to all",
	"cluster/options without a privilege":                        "shows all, and no allowed-tags",
	"cluster/tags that may be used are among the options":        "has no allowed-tags",
	"firewall/an action that is not known":                       "takes it",
	"mapping/a custom CPU model that is not there":               "takes it",
	"qemu-clone/the template is on another host":                 "has the text of other requests",
	"qemu-config/conflict: revert what is set":                   "takes it",
	"qemu-config/an ISO that is not there":                       "takes it",
	"qemu-config/a value in a format: memory=8":                  "names the key without the option",
	"qemu-config/a value in a format: numa0=cpus=x":              "names the key without the option",
	"qemu-config/a value in a format: numa0=hostnodes=0":         "names the key without the option",
	"qemu-config/a value in a format: numa0=cpus=0,policy=none":  "names the key without the option",
	"qemu-config/a value in a format: net0=virtio,tag=0":         "names the key without the option",
	"qemu-create/start needs VM.PowerMgmt":                       "starts it",
	"storage/a storage that is not there, in the list":           "gives an empty list",
	"storage/the status of a storage that is not there":          "has the text of other requests",
	"storage/the host that is asked runs an upload for another":  "runs it on the host that is named",
	"storage/an upload without a file":                           "blames a parameter",
	"storage/content that is no volume is not deleted":           "starts a task",
	"tasks/stopping a task of another user needs Sys.Modify":     "wants Sys.Audit",
	"tasks/an empty list of tasks has no total":                  "has a total of 0, which Proxmox leaves out",
	"tasks/a token does not see its tasks in the cluster's list": "shows them",
}
