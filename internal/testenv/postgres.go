package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
)

// postgresPassword is the password of the superuser.
const postgresPassword = "canary-of-postgresql" //nolint:gosec // of a server that lives for a test

// Database is a PostgreSQL server.
type Database struct {
	// Address is the server's host and port.
	Address string

	dir, bin   string
	attributes *syscall.SysProcAttr
	server     *server
}

// Postgres starts a PostgreSQL server that is stopped at the end of the test.
func Postgres(t testing.TB) *Database {
	t.Helper()
	enginetest.Needs(t, "postgres")
	d, err := StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// StartPostgres starts a PostgreSQL server for the tests of a whole package. The caller
// must close it.
func StartPostgres() (*Database, error) {
	bin, err := postgresBinaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "numaform-pg-")
	if err != nil {
		return nil, fmt.Errorf("starting PostgreSQL: %w", err)
	}
	d := &Database{dir: dir, bin: bin}
	if err := d.initialize(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting PostgreSQL: %w", err), d.Close())
	}
	if err := d.Resume(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting PostgreSQL: %w", err), d.Close())
	}
	return d, nil
}

// postgresBinaries finds the directory of the server's programs.
func postgresBinaries() (string, error) {
	candidates, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", err
	}
	if found, err := exec.LookPath("postgres"); err == nil {
		candidates = append([]string{found}, candidates...)
	}
	for _, candidate := range candidates {
		real, err := filepath.EvalSymlinks(candidate)
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(real), "initdb")); err == nil {
			return filepath.Dir(real), nil
		}
	}
	return "", errors.New("no PostgreSQL server found: install one (Debian: apt-get install postgresql), or run make postgres as root")
}

// initialize creates the data directory. PostgreSQL refuses to run as root, so a root process
// runs it as the user postgres or nobody.
func (d *Database) initialize() error {
	ports, err := FreePorts(1)
	if err != nil {
		return err
	}
	d.Address, d.attributes = ports[0], &syscall.SysProcAttr{}
	password := filepath.Join(d.dir, "password")
	if err := os.WriteFile(password, []byte(postgresPassword+"\n"), 0o600); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := d.dropRoot(password); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(context.Background(), filepath.Join(d.bin, "initdb"), "-D", d.data(), "-U", "postgres", //nolint:gosec // found above
		"-A", "scram-sha-256", "--pwfile", password, "-E", "UTF8", "--locale=C", "--no-sync")
	cmd.Dir, cmd.SysProcAttr = d.dir, d.attributes
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("creating the data directory: %w: %s", err, out)
	}
	return nil
}

// dropRoot makes the server run as another user, who becomes the owner of its directory.
func (d *Database) dropRoot(password string) error {
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return err
		}
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return err
	}
	d.attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return errors.Join(os.Chown(d.dir, int(uid), int(gid)), os.Chown(password, int(uid), int(gid)))
}

func (d *Database) data() string { return filepath.Join(d.dir, "data") }

// URL returns the value for conn_str, with the password of the superuser.
func (d *Database) URL() string {
	return "postgres://postgres:" + postgresPassword + "@" + d.Address + "/postgres?sslmode=disable"
}

// Password returns the password in URL.
func (d *Database) Password() string { return postgresPassword }

// Restart stops the server immediately, which ends all connections and their locks, and
// starts it again with the same data and address.
func (d *Database) Restart() error {
	if err := d.Stop(); err != nil {
		return err
	}
	return d.Resume()
}

// Stop stops the server and keeps its data.
func (d *Database) Stop() error { return d.server.stop() }

// Resume starts a stopped server.
func (d *Database) Resume() error {
	host, port, err := net.SplitHostPort(d.Address)
	if err != nil {
		return err
	}
	// SIGINT stops it without waiting for its clients.
	d.server = &server{path: filepath.Join(d.bin, "postgres"), interrupt: syscall.SIGINT}
	attributes := *d.attributes
	return d.server.start(d.dir, []string{
		"-D", d.data(), "-h", host, "-p", port, "-k", d.dir, "-c", "fsync=off", "-c", "max_connections=100",
	}, &attributes, d.ready)
}

// ready checks whether the server accepts connections.
func (d *Database) ready(ctx context.Context) error {
	host, port, err := net.SplitHostPort(d.Address)
	if err != nil {
		return err
	}
	return exec.CommandContext(ctx, filepath.Join(d.bin, "pg_isready"), "-q", "-h", host, "-p", port).Run() //nolint:gosec // found above
}

// Query runs statements or commands of psql as the superuser, in one session, and returns
// psql's output, unaligned.
func (d *Database) Query(ctx context.Context, statements ...string) (string, error) {
	args := []string{"-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", d.URL()}
	for _, statement := range statements {
		args = append(args, "-c", statement)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "psql"), args...) //nolint:gosec // a test's
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("querying PostgreSQL: %w: %s", err, out)
	}
	return string(out), nil
}

// Close stops the server and removes its data.
func (d *Database) Close() error { return errors.Join(d.server.stop(), os.RemoveAll(d.dir)) }
