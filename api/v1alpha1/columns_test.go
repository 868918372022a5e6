package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/numaform/numaform/api/v1alpha1"
)

// columns returns the columns that kubectl get shows for an object, with a star on the
// columns of -o wide. It omits names and ages.
func columns(t *testing.T, path string) map[string]string {
	t.Helper()
	server := plane.Cluster(t).Config
	c, err := rest.HTTPClientFor(server)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.Host+"/apis/numaform.dev/v1alpha1/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // already read
	var table metav1.Table
	if err := json.NewDecoder(response.Body).Decode(&table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("%s: %d rows", path, len(table.Rows))
	}
	shown := map[string]string{}
	for i, column := range table.ColumnDefinitions {
		if column.Name != "Name" && column.Name != "Age" {
			shown[column.Name+strings.Repeat("*", int(column.Priority))] = fmt.Sprint(table.Rows[0].Cells[i])
		}
	}
	return shown
}

func TestColumns(t *testing.T) {
	c := newClient(t, nil)
	nc := parse(t, full)
	nc.Name = "shown"
	if err := c.Create(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	nc.SetHosts([]string{"lab/pve-1", "lab/pve-2"})
	nc.StatusConditions().SetFalse(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateNotFound, "lab/pve-1 has no template")
	if err := c.Status().Update(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"Template": "debian-13", "Placement": "Dedicated", "Hosts": "2", "Ready": "False",
		"Region*": "lab", "Metadata*": "cdrom", "Problem*": nc.StatusConditions().Root().Message,
	}
	if diff := cmp.Diff(want, columns(t, "proxmoxnodeclasses/shown")); diff != "" {
		t.Errorf("columns of a class differ:\n%s", diff)
	}

	plan := scalePlan()
	if err := c.Create(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	plan.Status = v1alpha1.ScalePlanStatus{Phase: v1alpha1.ScalePlanApproved, Approver: "jane"}
	if err := c.Status().Update(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	want = map[string]string{
		"NodePools": `["workers"]`, "Direction": "Down", "Change": "1 node less", "Verdict": "NeedsApproval", "Phase": "Approved",
		"Expires": "2026-01-02T03:04:05Z", "Approver*": "jane", "Hash*": plan.Spec.PlanHash,
	}
	if diff := cmp.Diff(want, columns(t, "scaleplans/"+plan.Name)); diff != "" {
		t.Errorf("columns of a plan differ:\n%s", diff)
	}
}
