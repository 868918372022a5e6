package forge_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/forge"
)

// TestGiteaClosedBy finds who closed a pull request, although that user edited older comments
// afterwards, which Gitea then lists before the closing. Gitea omits comments on code from a
// page, and such a page can be empty.
func TestGiteaClosedBy(t *testing.T) {
	t.Parallel()
	const edited = 120
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/repos/ops/fleet/pulls/10", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(object{"number": 10, "state": "closed", "closed_at": "2026-11-28T10:00:00Z", "base": object{"ref": "main"}})
	})
	mux.HandleFunc("GET /api/v1/repos/ops/fleet/issues/10/timeline", func(w http.ResponseWriter, r *http.Request) {
		page, err := strconv.Atoi(r.URL.Query().Get("page"))
		limit, limitErr := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil || limitErr != nil || r.URL.Query().Get("since") != "2026-11-28T10:00:00Z" {
			t.Errorf("query %s", r.URL.RawQuery)
		}
		var list []object
		for i := (page - 1) * limit; i < min(page*limit, edited+1); i++ {
			kind := "comment"
			switch {
			case i == edited:
				kind = "close"
			case i < limit:
				continue // a comment on code
			}
			list = append(list, object{"type": kind, "user": object{"login": "mallory"}})
		}
		w.Header().Set("X-Total-Count", strconv.Itoa(len(list)))
		_ = json.NewEncoder(w).Encode(list)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client, err := forge.New(forge.Config{Remote: server.URL + "/ops/fleet.git", Base: "main", Kind: forge.Gitea, URL: server.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	if closed, err := client.Get(t.Context(), 10); err != nil || closed.State != forge.Closed || closed.ClosedBy != "mallory" {
		t.Errorf("Get = %+v, %v", closed, err)
	}
}

// TestGiteaRefusesMerge explains Gitea's answer to the merge of a pull request with conflicts,
// which advises the user to wait.
func TestGiteaRefusesMerge(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/repos/ops/fleet", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(object{"allow_squash_merge": true})
	})
	mux.HandleFunc("GET /api/v1/repos/ops/fleet/pulls/10", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(object{"number": 10, "state": "open", "base": object{"ref": "main"}, "head": object{"sha": "aaaa"}})
	})
	mux.HandleFunc("POST /api/v1/repos/ops/fleet/pulls/10/merge", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusMethodNotAllowed)
		_ = json.NewEncoder(w).Encode(object{"message": "Please try again later"})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client, err := forge.New(forge.Config{Remote: server.URL + "/ops/fleet.git", Base: "main", Kind: forge.Gitea, URL: server.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Merge(t.Context(), 10, "aaaa")
	if conflict := (*forge.ConflictError)(nil); !errors.As(err, &conflict) || !strings.Contains(conflict.Reason, "conflicts with the base branch") {
		t.Errorf("Merge: %v", err)
	}
}
