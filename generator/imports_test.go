package generator_test

import (
	"testing"

	"github.com/numaform/numaform/generator"
)

func TestImportBlocks(t *testing.T) {
	t.Parallel()
	got, err := generator.ImportBlocks([]generator.Import{
		{Address: "module.w-2001.proxmox_virtual_environment_vm.node", ID: "pve-1/2001"},
		{Address: "terraform_data.x", ID: "${evil}\"\n"},
	})
	want := `import {
  to = module.w-2001.proxmox_virtual_environment_vm.node
  id = "pve-1/2001"
}
import {
  to = terraform_data.x
  id = "$${evil}\"\n"
}
`
	if err != nil || string(got) != want {
		t.Errorf("got %v\n%s", err, got)
	}
	for _, address := range []string{"", "a b", "a.b\nprovider \"x\" {}", "f(1)"} {
		if _, err := generator.ImportBlocks([]generator.Import{{Address: address, ID: "1"}}); err == nil {
			t.Errorf("address %q was taken", address)
		}
	}
}
