package operator

import (
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// maxWorkers is the maximum number of workers of a controller. A worker handles one object
// at a time. More would only wait for the client's limit of 200 requests per second.
const maxWorkers = 100

// bounded is a manager that limits the workers of controllers. Some of Karpenter's start 1,000
// workers, because they call the API of a cloud, which may take seconds. Here they
// only reserve VMs in memory, and the stacks of idle workers need 4 KiB each, or more after a
// start with many nodes.
type bounded struct{ manager.Manager }

// Add adds a runnable. The type of controller-runtime's controllers is internal, so the
// limit is set by reflection.
func (b bounded) Add(runnable manager.Runnable) error {
	if value := reflect.Indirect(reflect.ValueOf(runnable)); value.Kind() == reflect.Struct {
		if workers := value.FieldByName("MaxConcurrentReconciles"); workers.CanSet() && workers.CanInt() {
			workers.SetInt(min(workers.Int(), maxWorkers))
		}
	}
	return b.Manager.Add(runnable)
}
