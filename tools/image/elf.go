package main

import (
	"debug/elf"
	"fmt"
)

// machines maps architectures to ELF machine types.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkProgram returns an error unless a program is built for the architecture and needs no
// dynamic loader, which the image does not have.
func checkProgram(path, arch string) error {
	binary, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("reading program %s: %w: build it with make image", path, err)
	}
	defer binary.Close() //nolint:errcheck // only read
	want, known := machines[arch]
	if !known {
		return fmt.Errorf("architecture %s is not supported: use amd64 or arm64", arch)
	}
	if binary.Machine != want {
		return fmt.Errorf("program %s is for %s, want %s", path, binary.Machine, want)
	}
	for _, segment := range binary.Progs {
		if segment.Type == elf.PT_INTERP {
			return fmt.Errorf("program %s needs a dynamic loader, and the image has none: build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}
