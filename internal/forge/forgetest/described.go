package forgetest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/numaform/numaform/internal/forge"
)

// Operation is an operation of a forge's API that numaform uses, as the forge's published
// description has it: for GitHub, the OpenAPI description of its REST API (version
// 2022-11-28); for GitLab, docs.gitlab.com/api, version 4.
type Operation struct {
	Method string
	// Path is a pattern of http.ServeMux. GitHub's path is the one of GitHub Enterprise Server.
	Path string
	// Query and Fields are the names of the parameters and of the fields of the body. Those
	// that end in ! are required.
	Query, Fields string
}

// Operations returns the described operations of GitHub or GitLab.
func Operations(kind forge.Kind) []Operation {
	const repo, project = "/api/v3/repos/{owner}/{repo}", "/api/v4/projects/{id}"
	switch kind {
	case forge.GitHub:
		return []Operation{
			{Method: "GET", Path: repo},
			{Method: "GET", Path: repo + "/pulls", Query: "state head base sort direction per_page page"},
			{Method: "POST", Path: repo + "/pulls", Fields: "title head! head_repo base! body maintainer_can_modify draft issue"},
			{Method: "GET", Path: repo + "/pulls/{number}"},
			{Method: "PATCH", Path: repo + "/pulls/{number}", Fields: "title body state base maintainer_can_modify"},
			{Method: "PUT", Path: repo + "/pulls/{number}/merge", Fields: "commit_title commit_message sha merge_method"},
			{Method: "GET", Path: repo + "/pulls/{number}/reviews", Query: "per_page page"},
			{Method: "POST", Path: repo + "/pulls/{number}/requested_reviewers", Fields: "reviewers team_reviewers"},
			{Method: "GET", Path: repo + "/issues/{number}"},
			{Method: "POST", Path: repo + "/issues/{number}/labels", Fields: "labels"},
			{Method: "POST", Path: repo + "/issues/{number}/comments", Fields: "body!"},
			{Method: "GET", Path: repo + "/commits/{ref}/status", Query: "per_page page"},
			{Method: "GET", Path: repo + "/commits/{ref}/check-runs", Query: "check_name status filter per_page page app_id"},
			{Method: "POST", Path: repo + "/statuses/{sha}", Fields: "state! target_url description context"},
		}
	case forge.GitLab:
		return []Operation{
			{Method: "GET", Path: "/api/v4/users", Query: "username!"},
			{Method: "GET", Path: project + "/merge_requests", Query: "state target_branch source_branch scope order_by sort page per_page"},
			{Method: "POST", Path: project + "/merge_requests", Fields: "source_branch! target_branch! title! description labels reviewer_ids remove_source_branch squash"},
			{Method: "GET", Path: project + "/merge_requests/{number}"},
			{Method: "PUT", Path: project + "/merge_requests/{number}", Fields: "title description state_event target_branch labels reviewer_ids"},
			{Method: "PUT", Path: project + "/merge_requests/{number}/merge", Fields: "merge_commit_message squash_commit_message squash should_remove_source_branch auto_merge sha"},
			{Method: "POST", Path: project + "/merge_requests/{number}/notes", Fields: "body!"},
			{Method: "GET", Path: project + "/merge_requests/{number}/approvals"},
			{Method: "GET", Path: project + "/merge_requests/{number}/reviewers"},
			{Method: "GET", Path: project + "/merge_requests/{number}/versions", Query: "page per_page"},
			{Method: "GET", Path: project + "/repository/commits/{sha}/statuses", Query: "ref stage name pipeline_id order_by sort all page per_page"},
			{Method: "POST", Path: project + "/statuses/{sha}", Fields: "state! ref name context target_url description coverage pipeline_id"},
		}
	case forge.Gitea:
	}
	return nil
}

// Undescribed returns how a request with the fields of its body differs from the described
// operations of a forge.
func Undescribed(kind forge.Kind, r *http.Request, fields map[string]any) (problems []string) {
	mux := http.NewServeMux()
	byPattern := map[string]Operation{}
	for _, operation := range Operations(kind) {
		pattern := operation.Method + " " + operation.Path
		byPattern[pattern] = operation
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	}
	_, pattern := mux.Handler(r)
	operation, ok := byPattern[pattern]
	if !ok {
		return []string{fmt.Sprintf("%s %s is not described", r.Method, r.URL)}
	}
	check := func(what, names string, has func(string) bool, have []string) {
		described := strings.Fields(names)
		for _, name := range have {
			if !slices.Contains(described, name) && !slices.Contains(described, name+"!") {
				problems = append(problems, fmt.Sprintf("%s %s: %s %q is not described", r.Method, r.URL, what, name))
			}
		}
		for _, name := range described {
			if required, ok := strings.CutSuffix(name, "!"); ok && !has(required) {
				problems = append(problems, fmt.Sprintf("%s %s: %s %q is missing", r.Method, r.URL, what, required))
			}
		}
	}
	check("parameter", operation.Query, r.URL.Query().Has, sortedKeys(r.URL.Query()))
	check("field", operation.Fields, func(name string) bool { _, ok := fields[name]; return ok }, sortedKeys(fields))
	return problems
}
