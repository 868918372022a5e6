package operator

import "sigs.k8s.io/controller-runtime/pkg/manager"

// Bounded returns a manager that limits the workers of controllers.
func Bounded(m manager.Manager) manager.Manager { return bounded{m} }
