package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ScalePlan is a change that is pending approval: what would be created or removed, its
// Terraform plan, and why it needs approval. Its name begins
// with the NodePool and ends with the first digits of the hash.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=scaleplans,scope=Cluster,categories=karpenter,shortName={sp}
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="NodePools",type="string",JSONPath=".spec.nodePools"
// +kubebuilder:printcolumn:name="Direction",type="string",JSONPath=".spec.direction"
// +kubebuilder:printcolumn:name="Change",type="string",JSONPath=".spec.summary"
// +kubebuilder:printcolumn:name="Verdict",type="string",JSONPath=".spec.verdict.decision"
// +kubebuilder:printcolumn:name="Phase",type="string",JSONPath=".status.phase"
// +kubebuilder:printcolumn:name="Expires",type="string",JSONPath=".spec.expiresAt"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Approver",type="string",JSONPath=".status.approver",priority=1
// +kubebuilder:printcolumn:name="Hash",type="string",JSONPath=".spec.planHash",priority=1
type ScalePlan struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ScalePlanSpec `json:"spec"`
	// +optional
	Status ScalePlanStatus `json:"status,omitempty"`
}

// ScalePlanList is a list of ScalePlans.
//
// +kubebuilder:object:root=true
type ScalePlanList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ScalePlan `json:"items"`
}

// ScalePlanSpec is the change that numaform proposes, and what people decide about it.
// Only approve, approvedBy, reject and rejectedBy may change, once each.
//
// +kubebuilder:validation:XValidation:rule="self.direction == oldSelf.direction && self.nodePools == oldSelf.nodePools && self.requestedBy == oldSelf.requestedBy && self.summary == oldSelf.summary && self.planHash == oldSelf.planHash && self.shards == oldSelf.shards && self.verdict == oldSelf.verdict && self.expiresAt == oldSelf.expiresAt",message="only approve, approvedBy, reject and rejectedBy may change"
// +kubebuilder:validation:XValidation:rule="has(self.why) == has(oldSelf.why) && (!has(self.why) || self.why == oldSelf.why) && has(self.vms) == has(oldSelf.vms) && (!has(self.vms) || self.vms == oldSelf.vms) && has(self.reasons) == has(oldSelf.reasons) && (!has(self.reasons) || self.reasons == oldSelf.reasons)",message="only approve, approvedBy, reject and rejectedBy may change"
// +kubebuilder:validation:XValidation:rule="has(self.diff) == has(oldSelf.diff) && (!has(self.diff) || self.diff == oldSelf.diff) && has(self.diffSHA256) == has(oldSelf.diffSHA256) && (!has(self.diffSHA256) || self.diffSHA256 == oldSelf.diffSHA256)",message="only approve, approvedBy, reject and rejectedBy may change"
// +kubebuilder:validation:XValidation:rule="!has(self.approve) || self.approve == self.planHash",message="must be the whole spec.planHash: look at the diff, then copy all 64 characters",fieldPath=".approve"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approve) || has(self.approve)",message="an approval cannot be revoked: it may already be in use; to stop everything, use numaform pause",fieldPath=".approve"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.reject) || (has(self.reject) && self.reject == oldSelf.reject)",message="a rejection cannot be revoked: numaform proposes again what is still needed",fieldPath=".reject"
// +kubebuilder:validation:XValidation:rule="!has(self.approve) || !has(self.reject)",message="the plan is approved and rejected: remove one of them",fieldPath=".reject"
// +kubebuilder:validation:XValidation:rule="has(self.approve) == has(self.approvedBy)",message="belongs to approve: write both, with your own user name here",fieldPath=".approvedBy"
// +kubebuilder:validation:XValidation:rule="has(self.reject) == has(self.rejectedBy)",message="belongs to reject: write both, with your own user name here",fieldPath=".rejectedBy"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approvedBy) || (has(self.approvedBy) && self.approvedBy == oldSelf.approvedBy)",message="who approved cannot change",fieldPath=".approvedBy"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.rejectedBy) || (has(self.rejectedBy) && self.rejectedBy == oldSelf.rejectedBy)",message="who rejected cannot change",fieldPath=".rejectedBy"
type ScalePlanSpec struct {
	// Direction is Up if nodes are created, Down if nodes are removed.
	Direction ScaleDirection `json:"direction"`

	// NodePools are the pools whose nodes are created or removed.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	NodePools []string `json:"nodePools"`

	// RequestedBy is the part of numaform that requests the change, such as
	// provisioning or disruption/empty.
	// +kubebuilder:validation:MaxLength=128
	RequestedBy string `json:"requestedBy"`

	// Why says what the change is for.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Why string `json:"why,omitempty"`

	// Summary is the change in one line.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Summary string `json:"summary"`

	// VMs are those that are made, changed or removed.
	// +optional
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	VMs []ScalePlanVM `json:"vms,omitempty"`

	// PlanHash is the SHA-256 of all that an approval is for, in hex.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	PlanHash string `json:"planHash"`

	// Hosts are the hosts that the change touches, with their plans.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=host
	Hosts []ScalePlanHost `json:"shards"`

	// Diff is the text of the plans. Of more than 512 KiB only the beginning is
	// here; diffSHA256 is of all of it.
	// +optional
	// +kubebuilder:validation:MaxLength=524288
	Diff string `json:"diff,omitempty"`

	// DiffSHA256 is the SHA-256 of the whole diff, in hex.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	DiffSHA256 string `json:"diffSHA256,omitempty"`

	// Reasons say why a person has to look.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=2048
	// +listType=atomic
	Reasons []string `json:"reasons,omitempty"`

	// Verdict is the guard's.
	Verdict ScalePlanVerdict `json:"verdict"`

	// ExpiresAt is when the plan can no longer be approved.
	ExpiresAt metav1.Time `json:"expiresAt"`

	// Approve allows the plan. It must be the whole planHash.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Approve string `json:"approve,omitempty"`

	// ApprovedBy is the user name of who approves.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ApprovedBy string `json:"approvedBy,omitempty"`

	// Reject ends the plan; it says why.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reject string `json:"reject,omitempty"`

	// RejectedBy is the user name of who rejects.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	RejectedBy string `json:"rejectedBy,omitempty"`
}

// ScaleDirection says whether nodes are created or removed.
//
// +kubebuilder:validation:Enum=Up;Down
type ScaleDirection string

// The directions.
const (
	ScaleUp   ScaleDirection = "Up"
	ScaleDown ScaleDirection = "Down"
)

// ScalePlanVM is a VM that is made, changed or removed.
type ScalePlanVM struct {
	// Action is what happens to the VM.
	Action ScalePlanAction `json:"action"`

	// Name is the VM's and its Node's. It is empty for a VM that gets its name when
	// it is made.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// Key is the VM's for ever; empty likewise.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Key string `json:"key,omitempty"`

	// Host is the Proxmox host as region/name.
	// +kubebuilder:validation:MaxLength=127
	Host string `json:"host"`

	// NodePool is the VM's pool.
	// +kubebuilder:validation:MaxLength=253
	NodePool string `json:"nodePool"`

	// InstanceType is the VM's size.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	InstanceType string `json:"instanceType,omitempty"`

	// Change is the SHA-256 of what the plan does to the VM, its name, number and key
	// left out: VMs of one hash are made alike.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{64})?$`
	Change string `json:"change,omitempty"`

	// Reason says why this VM and this place.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Reason string `json:"reason,omitempty"`

	// Pods are those that the VM is for, or that have to move, as namespace/name.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=317
	// +listType=atomic
	Pods []string `json:"pods,omitempty"`
}

// ScalePlanAction is what happens to a VM.
//
// +kubebuilder:validation:Enum=Create;Update;Replace;Delete
type ScalePlanAction string

// The actions.
const (
	ScalePlanCreate  ScalePlanAction = "Create"
	ScalePlanUpdate  ScalePlanAction = "Update"
	ScalePlanReplace ScalePlanAction = "Replace"
	ScalePlanDelete  ScalePlanAction = "Delete"
)

// ScalePlanHost is the part of the change on one host: one Terraform state.
type ScalePlanHost struct {
	// Host is the Proxmox host as region/name.
	// +kubebuilder:validation:MaxLength=127
	Host string `json:"host"`

	// PlanSHA256 is of the saved plan file; empty while there is none.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{64})?$`
	// +kubebuilder:validation:MaxLength=64
	PlanSHA256 string `json:"planSHA256,omitempty"`

	// PlanDigest is of what the plan does, however often it is made: an approval
	// holds for a later plan of the same digest.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	PlanDigest string `json:"planDigest,omitempty"`

	// Lineage and Serial name the state that the plan was made against.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Lineage string `json:"lineage,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	Serial int64 `json:"serial,omitempty"`
}

// ScalePlanVerdict is what the guard said.
type ScalePlanVerdict struct {
	// Decision is Allow, NeedsApproval or Deny. Plans that the guard allows wait
	// where the NodePool's mode is manual.
	Decision VerdictDecision `json:"decision"`

	// Rules are those that did not allow.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	// +listType=atomic
	Rules []ScalePlanRule `json:"rules,omitempty"`
}

// VerdictDecision is a decision of the guard.
//
// +kubebuilder:validation:Enum=Allow;NeedsApproval;Deny
type VerdictDecision string

// The decisions.
const (
	VerdictAllow         VerdictDecision = "Allow"
	VerdictNeedsApproval VerdictDecision = "NeedsApproval"
	VerdictDeny          VerdictDecision = "Deny"
)

// ScalePlanRule is a rule of the guard and what it said.
type ScalePlanRule struct {
	// Rule is the rule's name.
	// +kubebuilder:validation:MaxLength=128
	Rule string `json:"rule"`
	// Decision is the rule's own.
	// +optional
	Decision VerdictDecision `json:"decision,omitempty"`
	// Message says what it found, and where.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
}

// ScalePlanStatus is what became of the change.
type ScalePlanStatus struct {
	// Phase is the progress of the plan.
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

	// Conditions report the steps in between.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ScalePlanPhase is the progress of a plan.
//
// +kubebuilder:validation:Enum=Pending;Approved;Rejected;Expired;Superseded;Applied;Failed
type ScalePlanPhase string

// The phases.
const (
	// ScalePlanPending waits for a person.
	ScalePlanPending ScalePlanPhase = "Pending"
	// ScalePlanApproved is being applied.
	ScalePlanApproved ScalePlanPhase = "Approved"
	// ScalePlanRejected was rejected by a person.
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

// hashDigits is the number of digits of a plan's hash in its name.
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
func CutDiff(diff string) (text, digest string) {
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
