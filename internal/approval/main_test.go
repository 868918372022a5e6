package approval_test

import (
	"os"
	"testing"

	"github.com/numaform/numaform/internal/testenv"
)

// plane is the control plane of the package's tests.
var plane testenv.Shared

func TestMain(m *testing.M) { os.Exit(plane.Main(m)) }
