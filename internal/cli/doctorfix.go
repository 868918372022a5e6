package cli

import (
	"fmt"

	"github.com/numaform/numaform/internal/doctor"
)

// repair fixes what is safe to fix, and reports it.
func repair(process Process, checks doctor.Config) {
	done, err := doctor.Repair(checks)
	for _, line := range done {
		fmt.Fprintf(process.Stderr, "fixed: %s\n", line)
	}
	if err != nil {
		fmt.Fprintf(process.Stderr, "numaform: not everything could be fixed: %v\n", err)
	}
}

// printCommands prints the commands that fix the remaining problems, for the user to review
// and run.
func printCommands(process Process, report doctor.Report) {
	commands := report.Commands()
	for _, place := range []struct {
		onHost bool
		lead   string
	}{
		{false, "Run these commands on this machine:"},
		{true, "Run these commands as root on a host of the Proxmox cluster, and qm commands on the host of the VM:"},
	} {
		lead := "\n" + place.lead + "\n"
		for _, c := range commands {
			if c.OnHost == place.onHost {
				fmt.Fprintf(process.Stderr, "%s  %s\n", lead, c.Line)
				lead = ""
			}
		}
	}
}
