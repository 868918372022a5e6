package backends_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// TestFirstUse checks that three hosts can be initialized concurrently, each from two
// checkouts, on a backend that was never used.
func TestFirstUse(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string, engine *state.Engine) {
		r := newRoot(t, newSite(t, kind, false), engine, 0)
		r.fleet.Hosts = nil
		for i := range 3 {
			r.fleet.Hosts = append(r.fleet.Hosts, topology.HostID{Region: testenv.Region, Host: topology.HostName(fmt.Sprintf("pve-%d", i+1))})
		}
		r.render(t)
		var group errgroup.Group
		for _, checkout := range []*root{r, r.beside(t, engine)} {
			for _, host := range r.fleet.Hosts {
				w := checkout.open(t, host)
				group.Go(func() error { return w.Init(t.Context()) })
			}
		}
		must(t, group.Wait())
	})
}

// untilBlocking waits until the session blocks another session.
const untilBlocking = `DO $$ BEGIN
	WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))) LOOP
		PERFORM pg_sleep(0.02);
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$`

// TestFirstUseOfADatabase checks that init succeeds if another client creates the same
// objects at the same time.
func TestFirstUseOfADatabase(t *testing.T) {
	t.Parallel()
	for _, engine := range engines(t) {
		t.Run(engine.Name(), func(t *testing.T) {
			t.Parallel()
			database := testenv.Postgres(t)
			query := func(statement string) string {
				found, err := database.Query(t.Context(), statement)
				must(t, err)
				return strings.TrimSpace(found)
			}
			sequence := "CREATE SEQUENCE IF NOT EXISTS public.global_states_id_seq AS bigint"
			schema := "CREATE SCHEMA NAME"
			table := "CREATE TABLE NAME.states (id bigint NOT NULL DEFAULT nextval('public.global_states_id_seq') PRIMARY KEY, name text UNIQUE, data text)"
			index := "CREATE UNIQUE INDEX states_by_name ON NAME.states (name)"
			// The sequence is shared by the whole database. All other objects belong to the
			// root, and are created once.
			for _, statements := range [][]string{{sequence}, {schema}, {schema, table}, {schema, table, index}} {
				s := &site{Backend: fleet.Backend{Type: "pg"}, env: map[string]string{"PG_CONN_STR": database.URL()}}
				r := newRoot(t, s, engine, 0)
				for i := range statements {
					statements[i] = strings.ReplaceAll(statements[i], "NAME", `"`+generator.StateName(r.fleet.ClusterID, here)+`"`)
				}
				last := len(statements) - 1
				for _, statement := range statements[:last] {
					query(statement)
				}
				ended := make(chan error, 1)
				go func() {
					_, err := database.Query(t.Context(), statements[last]+"; "+untilBlocking)
					ended <- err
				}()
				await(t, "the other client's transaction", func() bool {
					return query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
				})
				if err := r.open(t, here).Init(t.Context()); err != nil {
					t.Errorf("while another client did %s: %v", statements[last], err)
				}
				must(t, <-ended)
			}
		})
	}
}

// TestLockOfFirstUse checks that init fails on the lock that a killed init left, and succeeds
// after numaform unlock has deleted its Lease.
func TestLockOfFirstUse(t *testing.T) {
	t.Parallel()
	for _, engine := range engines(t) {
		t.Run(engine.Name(), func(t *testing.T) {
			t.Parallel()
			r := newRoot(t, newSite(t, "kubernetes", false), engine, 0)
			cluster, err := servers.cluster()
			must(t, err)
			client, err := kubernetes.NewForConfig(cluster.Config)
			must(t, err)
			holder := "1b3d2bd8-5b8e-4b7b-9a3c-0a5f5f0c2d11"
			_, err = client.CoordinationV1().Leases(r.Config["namespace"]).Create(t.Context(), &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{
					Name: "lock-tfstate-default-" + generator.StateName(r.fleet.ClusterID, here),
					Annotations: map[string]string{"app.terraform.io/lock-info": fmt.Sprintf(
						`{"ID":%q,"Operation":"init","Who":"anna@laptop","Created":"2026-01-02T03:04:05Z"}`, holder,
					)},
				},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
			}, metav1.CreateOptions{})
			must(t, err)
			w := r.open(t, here)
			err = w.Init(t.Context())
			var locked *state.LockedError
			if !errors.As(err, &locked) || locked.ID != holder || locked.Who != "anna@laptop" {
				t.Fatalf("got %v, want the lock of anna@laptop", err)
			}
			// numaform deletes a Lease only in the cluster of its own kubeconfig.
			maps.DeleteFunc(r.env, func(name, _ string) bool { return strings.HasPrefix(name, "KUBE_") })
			unlock := r.command(t)
			if code, out := unlock("pve-1", holder, "--kubeconfig", cluster.Kubeconfig); code != cli.ExitFailed || !strings.Contains(out, "laptop is another machine") || r.locks(t) != 1 {
				t.Errorf("without confirmation: exit code %d:\n%s", code, out)
			}
			if code, out := unlock("pve-1", holder, "--yes", "--kubeconfig", cluster.Kubeconfig); code != cli.ExitOK {
				t.Errorf("exit code %d:\n%s", code, out)
			}
			must(t, w.Init(t.Context()))
		})
	}
}

// TestKubeconfigOfTheCommand checks that the engine accesses the states with the kubeconfig
// of numaform's command, and that the copy for the engine is removed when the workspace is
// closed.
func TestKubeconfigOfTheCommand(t *testing.T) {
	t.Parallel()
	for _, engine := range engines(t) {
		t.Run(engine.Name(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "kubernetes", false)
			login, err := os.ReadFile(s.env["KUBE_CONFIG_PATH"])
			must(t, err)
			delete(s.env, "KUBE_CONFIG_PATH")
			r := newRoot(t, s, engine, 1)
			w := r.open(t, here, func(config *state.Config) {
				config.Kubeconfig = state.Kubeconfig{Content: login, Server: "https://127.0.0.1"}
			})
			apply(t, w, plan(t, w, state.PlanOptions{}))
			settled(t, w)
			must(t, w.Close())
			if left := search(t, r.dir, s.secrets[0]); len(left) > 0 {
				t.Errorf("the kubeconfig is still in %v", left)
			}
		})
	}
}
