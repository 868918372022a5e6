package operator_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/operator"
)

// TestNoControllerUnderReview checks that the controller does not start in review mode
// without a forge, where no change could ever be approved.
func TestNoControllerUnderReview(t *testing.T) {
	t.Parallel()
	config := &operator.Config{Fleet: operator.Fleet{Git: operator.Git{Remote: "ssh://git.example/fleet", Review: true}}}
	if _, err := operator.NewController(config, operator.ControllerSettings{}); err == nil || !strings.Contains(err.Error(), "fleet.git.forge.kind") {
		t.Errorf("got %v", err)
	}
}
