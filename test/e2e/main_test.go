package e2e_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/numaform/numaform/internal/testenv"
)

func TestMain(m *testing.M) {
	if err := testenv.RunAtOnce("4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
