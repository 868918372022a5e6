package conformance_test

// differs are the cases in which the simulator is known to be wrong, with what it does
// instead. A case that becomes equal must leave this list.
var differs = map[string]string{
	"access/a parameter that is in the path too":                 "has a text of its own",
	"cluster/the pool of a VM needs Pool.Audit":                  "shows it to all",
	"qemu-config/conflict: revert what is set":                   "takes it",
	"qemu-create/start needs VM.PowerMgmt":                       "starts it",
	"storage/a storage that is not there, in the list":           "gives an empty list",
	"tasks/a token does not see its tasks in the cluster's list": "shows them",
}
