package forgetest_test

import (
	"errors"
	"testing"

	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/forge/forgetest"
)

// TestReviewsAreBoundToTheHead checks that the forge keeps the commit of a review after a
// push, and merges only the expected head.
func TestReviewsAreBoundToTheHead(t *testing.T) {
	f := forgetest.New("main")
	f.Push("numaform/a", "1111")
	opened, err := f.Create(t.Context(), forge.NewPullRequest{Head: "numaform/a", Title: "one"})
	if err != nil {
		t.Fatal(err)
	}
	f.Review(opened.Number, "ann", forge.Approved)
	f.Push("numaform/a", "2222")

	reviews, err := f.Reviews(t.Context(), opened.Number)
	if err != nil || len(reviews) != 1 || reviews[0].SHA != "1111" {
		t.Errorf("Reviews = %v, %v; want one of 1111", reviews, err)
	}
	var moved *forge.HeadError
	if _, err := f.Merge(t.Context(), opened.Number, "1111"); !errors.As(err, &moved) || moved.Have != "2222" {
		t.Errorf("Merge of an old head = %v, want a HeadError", err)
	}
	if _, err := f.Merge(t.Context(), opened.Number, "2222"); err != nil {
		t.Error(err)
	}
	if merged, err := f.Get(t.Context(), opened.Number); err != nil || merged.State != forge.Merged || merged.MergeSHA != "2222" {
		t.Errorf("Get = %v, %v; want it merged", merged, err)
	}
}

// TestForksAreNotBranches checks that a push to a branch does not change the pull request of
// a fork's branch with that name.
func TestForksAreNotBranches(t *testing.T) {
	f := forgetest.New("main")
	f.OpenBy("mallory", "numaform/a", "6666", "mine", true)
	f.Push("numaform/a", "1111")
	if list, err := f.Open(t.Context()); err != nil || len(list) != 1 || list[0].HeadSHA != "6666" || !list[0].Fork {
		t.Errorf("Open = %v, %v; want the fork's at its own commit", list, err)
	}
}
