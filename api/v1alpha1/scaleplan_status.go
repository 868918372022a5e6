package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ScalePlanStatus is what became of the change.
type ScalePlanStatus struct {
	// Phase is where the plan stands.
	// +optional
	Phase ScalePlanPhase `json:"phase,omitempty"`

	// Approver is who let the plan pass: a user, or the mode of a NodePool.
	// +optional
	Approver string `json:"approver,omitempty"`

	// DecidedAt is when the plan was approved, rejected, or found to be too old.
	// +optional
	DecidedAt *metav1.Time `json:"decidedAt,omitempty"`

	// FinishedAt is when an approved plan was applied, or failed.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`

	// Result says how it ended and what to do about it.
	// +optional
	Result string `json:"result,omitempty"`

	// Conditions tell of steps in between.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ScalePlanPhase is where a plan stands.
//
// +kubebuilder:validation:Enum=Pending;Approved;Rejected;Expired;Superseded;Applied;Failed
type ScalePlanPhase string

// The phases.
const (
	// ScalePlanPending waits for a person.
	ScalePlanPending ScalePlanPhase = "Pending"
	// ScalePlanApproved is being applied.
	ScalePlanApproved ScalePlanPhase = "Approved"
	// ScalePlanRejected was not wanted by a person.
	ScalePlanRejected ScalePlanPhase = "Rejected"
	// ScalePlanExpired waited for too long.
	ScalePlanExpired ScalePlanPhase = "Expired"
	// ScalePlanSuperseded is not what is needed any more.
	ScalePlanSuperseded ScalePlanPhase = "Superseded"
	// ScalePlanApplied is done.
	ScalePlanApplied ScalePlanPhase = "Applied"
	// ScalePlanFailed was approved, and the apply failed.
	ScalePlanFailed ScalePlanPhase = "Failed"
)

// Over reports whether nothing more comes of the plan.
func (p ScalePlanPhase) Over() bool {
	return p != "" && p != ScalePlanPending && p != ScalePlanApproved
}

// hashDigits is how much of a plan's hash stands in its name.
const hashDigits = 12

// maxDiffBytes is how much of a diff a ScalePlan holds: etcd takes 1.5 MiB for
// the whole object.
const maxDiffBytes = 512 << 10

// ScalePlanName returns the name of the plan of that hash.
func ScalePlanName(nodePool string, direction ScaleDirection, planHash string) string {
	end := "-" + strings.ToLower(string(direction)) + "-" + planHash[:min(hashDigits, len(planHash))]
	begin := nodePool[:min(len(nodePool), 253-len(end))]
	return strings.TrimRight(begin, ".-") + end
}

// CutDiff returns the diff as a ScalePlan takes it, and the SHA-256 of all of it.
// What is too long ends at a line's end with a note.
func CutDiff(diff string) (kept, digest string) {
	sum := sha256.Sum256([]byte(diff))
	digest = hex.EncodeToString(sum[:])
	if diff = strings.ToValidUTF8(diff, string(utf8.RuneError)); len(diff) <= maxDiffBytes {
		return diff, digest
	}
	note := func(left int) string {
		return fmt.Sprintf("\n… %d more bytes are not shown. SHA-256 of the whole diff: %s\n", left, digest)
	}
	end := maxDiffBytes - len(note(len(diff)))
	if line := strings.LastIndexByte(diff[:end], '\n'); line > 0 {
		end = line
	}
	for !utf8.RuneStart(diff[end]) {
		end--
	}
	return diff[:end] + note(len(diff)-end), digest
}
