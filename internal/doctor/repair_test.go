package doctor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/doctor"
)

// TestRepair checks that only modes of this user's files change, and only where that is safe.
func TestRepair(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing, open, unsafe := filepath.Join(dir, "missing"), filepath.Join(dir, "open"), filepath.Join(dir, "unsafe")
	secret, grouped := filepath.Join(dir, "token"), filepath.Join(dir, "grouped")
	for path, mode := range map[string]os.FileMode{open: 0o755, unsafe: 0o777} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{secret: 0o644, grouped: 0o640} {
		if err := os.WriteFile(path, []byte("s"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name, path string
		config     doctor.Config
		done       []string
		mode       os.FileMode
	}{
		{"a missing state directory", missing, doctor.Config{StateDir: missing}, []string{"mkdir -m 700 -p " + missing}, 0o700},
		{"a readable one", open, doctor.Config{StateDir: open}, []string{"chmod 700 " + open}, 0o700},
		{"a writable one needs a review", unsafe, doctor.Config{StateDir: unsafe}, nil, 0o777},
		{"a secret", secret, doctor.Config{SecretFiles: []string{secret}}, []string{"chmod 600 " + secret}, 0o600},
		{"a secret of a pod's group", grouped, doctor.Config{SecretFiles: []string{grouped, filepath.Join(dir, "none")}}, nil, 0o640},
	} {
		done, err := doctor.Repair(test.config)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.done, done); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		if info, err := os.Stat(test.path); err != nil || info.Mode().Perm() != test.mode {
			t.Errorf("%s: mode %v, %v, want %v", test.name, info.Mode(), err, test.mode)
		}
		if done, err := doctor.Repair(test.config); len(done) > 0 || err != nil {
			t.Errorf("%s: again: %v, %v", test.name, done, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(secret, 12345, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(secret, 0o644); err != nil {
			t.Fatal(err)
		}
		if done, err := doctor.Repair(doctor.Config{SecretFiles: []string{secret}}); len(done) > 0 || err == nil || !strings.Contains(err.Error(), "belongs to another user") {
			t.Errorf("a file of another user: %v, %v", done, err)
		}
	}
}

// TestCommands checks which parts of findings are printed as commands.
func TestCommands(t *testing.T) {
	t.Parallel()
	report := doctor.Report{
		{Status: doctor.OK, Fix: "pveum user add never@pve"},
		{Status: doctor.Fail, Fix: `pveum role modify NumaformVM --privs "VM.Clone VM.Config.CDROM" --append 1 && pveum acl modify /vms --users numaform@pve --roles NumaformVM`},
		{Status: doctor.Warn, What: "is not usable: its guest agent is disabled: qm set 9001 --agent 1"},
		{Status: doctor.Warn, Fix: "its guest agent is disabled: qm set 9001 --agent 1"},
		{Status: doctor.Fail, Fix: "pveum pool modify k8s --vms 9001, or set spec.pool of the class"},
		{Status: doctor.Fail, Fix: "set ca_file to a copy of /etc/pve/pve-root-ca.pem: copy it with `scp root@pve-1:/etc/pve/pve-root-ca.pem .`"},
		{Status: doctor.Warn, Fix: "chmod 700 /var/lib/numaform"},
		{Status: doctor.Fail, Fix: "run chmod 700 /var/lib/numaform, or set state_dir in numaform.yaml to a directory below it"},
		{Status: doctor.Fail, Fix: "run qm template VMID"},
		{Status: doctor.Fail, Fix: "set username in numaform.yaml"},
		{Status: doctor.Fail, Fix: "check the secret; if the token has expired, extend it: pveum user token modify numaform@pve scaler --expire 0"},
		{Status: doctor.Fail, Fix: "extend it: pveum user token modify numaform@pve scaler --expire 0"},
		{Status: doctor.Fail, Fix: "check token_id with `pveum user token list numaform@pve`"},
		{Status: doctor.Warn, Fix: "if no task is using the guest, run qm unlock 2000; then try again"},
		{Status: doctor.Warn, Fix: "if the class uses it, qm set 2000 --machine q35"},
		{Status: doctor.Warn, Fix: "run `numaform topology collect` on the host and add the file to machines in numaform.yaml"},
		{Status: doctor.Warn, Fix: "to identify it, run `qm config 2000`"},
		{Status: doctor.Fail, Fix: "pveum user token modify numaform@pve scaler --privsep 0; if this does not help, run the commands that numaform init prints"},
		{Status: doctor.Fail, Fix: "pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=a;b'"},
		{Status: doctor.Fail, Fix: "pvesm set seeds --disable 0, and add pve-1 to its nodes, or use another storage in the class"},
	}
	want := []doctor.Command{
		{OnHost: true, Line: `pveum role modify NumaformVM --privs "VM.Clone VM.Config.CDROM" --append 1`},
		{OnHost: true, Line: "pveum acl modify /vms --users numaform@pve --roles NumaformVM"},
		{OnHost: true, Line: "qm set 9001 --agent 1"},
		{OnHost: true, Line: "pveum pool modify k8s --vms 9001"},
		{Line: "scp root@pve-1:/etc/pve/pve-root-ca.pem ."},
		{Line: "chmod 700 /var/lib/numaform"},
		{OnHost: true, Line: "pveum user token modify numaform@pve scaler --privsep 0"},
		{OnHost: true, Line: "pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=a;b'"},
		{OnHost: true, Line: "pvesm set seeds --disable 0"},
	}
	if diff := cmp.Diff(want, report.Commands()); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}
