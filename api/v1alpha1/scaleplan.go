package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ScalePlan is a change that is pending approval: the affected VMs, the Terraform plans, and
// the reasons why it requires approval. Its name begins with the NodePool and ends with the
// first digits of the hash.
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

// ScalePlanSpec is the change that numaform proposes, and the decision about it. Only
// approve, approvedBy, breakGlass, reject and rejectedBy may change, once each, and
// signatures may be added.
//
// +kubebuilder:validation:XValidation:rule="self.direction == oldSelf.direction && self.nodePools == oldSelf.nodePools && self.requestedBy == oldSelf.requestedBy && self.summary == oldSelf.summary && self.planHash == oldSelf.planHash && self.shards == oldSelf.shards && self.verdict == oldSelf.verdict && self.expiresAt == oldSelf.expiresAt && has(self.clusterID) == has(oldSelf.clusterID) && (!has(self.clusterID) || self.clusterID == oldSelf.clusterID)",message="only approve, approvedBy, signatures, breakGlass, reject and rejectedBy may change"
// +kubebuilder:validation:XValidation:rule="has(self.why) == has(oldSelf.why) && (!has(self.why) || self.why == oldSelf.why) && has(self.cost) == has(oldSelf.cost) && (!has(self.cost) || self.cost == oldSelf.cost) && has(self.vms) == has(oldSelf.vms) && (!has(self.vms) || self.vms == oldSelf.vms) && has(self.reasons) == has(oldSelf.reasons) && (!has(self.reasons) || self.reasons == oldSelf.reasons)",message="only approve, approvedBy, signatures, breakGlass, reject and rejectedBy may change"
// +kubebuilder:validation:XValidation:rule="has(self.diff) == has(oldSelf.diff) && (!has(self.diff) || self.diff == oldSelf.diff) && has(self.diffSHA256) == has(oldSelf.diffSHA256) && (!has(self.diffSHA256) || self.diffSHA256 == oldSelf.diffSHA256)",message="only approve, approvedBy, signatures, breakGlass, reject and rejectedBy may change"
// +kubebuilder:validation:XValidation:rule="!has(self.approve) || self.approve == self.planHash",message="must be the whole spec.planHash: review the diff, then copy all 64 characters",fieldPath=".approve"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approve) || has(self.approve)",message="an approval cannot be revoked: it may already be in use; to stop everything, use numaform pause",fieldPath=".approve"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.reject) || (has(self.reject) && self.reject == oldSelf.reject)",message="a rejection cannot be revoked: numaform proposes again what is still needed",fieldPath=".reject"
// +kubebuilder:validation:XValidation:rule="!has(self.approve) || !has(self.reject)",message="the plan is approved and rejected: remove one of them",fieldPath=".reject"
// +kubebuilder:validation:XValidation:rule="has(self.approve) == has(self.approvedBy)",message="must be set together with approve, to your own user name",fieldPath=".approvedBy"
// +kubebuilder:validation:XValidation:rule="has(self.reject) == has(self.rejectedBy)",message="must be set together with reject, to your own user name",fieldPath=".rejectedBy"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approvedBy) || (has(self.approvedBy) && self.approvedBy == oldSelf.approvedBy)",message="the user who approved cannot be changed",fieldPath=".approvedBy"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.rejectedBy) || (has(self.rejectedBy) && self.rejectedBy == oldSelf.rejectedBy)",message="the user who rejected cannot be changed",fieldPath=".rejectedBy"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.signatures) || (has(self.signatures) && oldSelf.signatures.all(s, s in self.signatures))",message="a signature cannot be changed or removed: add another one",fieldPath=".signatures"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.breakGlass) || (has(self.breakGlass) && self.breakGlass == oldSelf.breakGlass)",message="a break-glass approval cannot be changed or revoked: it may already be in use",fieldPath=".breakGlass"
// +kubebuilder:validation:XValidation:rule="has(self.approve) || (!has(self.signatures) && !has(self.breakGlass))",message="must be set, because signatures or breakGlass are part of an approval",fieldPath=".approve"
type ScalePlanSpec struct {
	// ClusterID is the cluster ID in numaform.yaml, which signatures of the approval cover.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ClusterID string `json:"clusterID,omitempty"`

	// Direction is Up if nodes are created, woken or changed in place, and Down if nodes are
	// removed.
	Direction ScaleDirection `json:"direction"`

	// NodePools are the pools whose nodes are created, woken, changed or removed.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	NodePools []string `json:"nodePools"`

	// RequestedBy is the part of numaform that requests the change, such as
	// provisioning or disruption/empty.
	// +kubebuilder:validation:MaxLength=128
	RequestedBy string `json:"requestedBy"`

	// Why is the reason for the change.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Why string `json:"why,omitempty"`

	// Summary is the change in one line.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Summary string `json:"summary"`

	// Cost is what the change adds to the price and the resources of VMs, in one line.
	// Empty means nothing. The price is missing if numaform.yaml has no prices.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Cost string `json:"cost,omitempty"`

	// VMs are the VMs that are created, woken, changed or removed.
	// +optional
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	VMs []ScalePlanVM `json:"vms,omitempty"`

	// PlanHash is the SHA-256 of everything that an approval covers, in hex.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	PlanHash string `json:"planHash"`

	// Hosts are the affected hosts, with their plans.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=host
	Hosts []ScalePlanHost `json:"shards"`

	// Diff is the text of the plans. If it exceeds 512 KiB, only its beginning is stored;
	// diffSHA256 always covers the whole diff.
	// +optional
	// +kubebuilder:validation:MaxLength=524288
	Diff string `json:"diff,omitempty"`

	// DiffSHA256 is the SHA-256 of the whole diff, in hex.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	DiffSHA256 string `json:"diffSHA256,omitempty"`

	// Reasons are the reasons why the plan requires approval.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=2048
	// +listType=atomic
	Reasons []string `json:"reasons,omitempty"`

	// Verdict is the verdict of the guard.
	Verdict ScalePlanVerdict `json:"verdict"`

	// ExpiresAt is the time after which the plan can no longer be approved.
	ExpiresAt metav1.Time `json:"expiresAt"`

	// Approve approves the plan. It must be the complete planHash.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Approve string `json:"approve,omitempty"`

	// ApprovedBy is the name of the user who approves.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ApprovedBy string `json:"approvedBy,omitempty"`

	// Signatures are SSH signatures of the approval, if the approvers sign it. They can only
	// be added. Which signatures are necessary is part of numaform's configuration.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Signatures []ScalePlanSignature `json:"signatures,omitempty"`

	// BreakGlass makes the approval an emergency approval, which does without the required
	// signatures and does not wait for the end of a freeze window.
	// +optional
	BreakGlass *ScalePlanBreakGlass `json:"breakGlass,omitempty"`

	// Reject rejects the plan. Its value is the reason.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reject string `json:"reject,omitempty"`

	// RejectedBy is the name of the user who rejects.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	RejectedBy string `json:"rejectedBy,omitempty"`
}

// ScalePlanSignature is an SSH signature of an approval.
type ScalePlanSignature struct {
	// User is the name of the user who adds the signature, who need not be the signer.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	User string `json:"user"`

	// Signature is the signature by ssh-keygen -Y sign -n numaform-plan-v1 of the text that
	// numaform approve --statement writes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=12288
	Signature string `json:"signature"`
}

// ScalePlanBreakGlass is the reason and the end of an emergency approval.
type ScalePlanBreakGlass struct {
	// User is the name of the user who requests the emergency approval.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	User string `json:"user"`

	// Reason is the reason for the emergency approval.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`

	// Until is the time after which the change can no longer begin.
	Until metav1.Time `json:"until"`
}

// ScaleDirection is the direction of a change, as ScalePlanSpec.Direction describes.
//
// +kubebuilder:validation:Enum=Up;Down
type ScaleDirection string

// The directions.
const (
	ScaleUp   ScaleDirection = "Up"
	ScaleDown ScaleDirection = "Down"
)

// ScalePlanVM is a VM that is created, woken, changed or removed.
type ScalePlanVM struct {
	// Action is the change of the VM.
	Action ScalePlanAction `json:"action"`

	// Name is the name of the VM and its Node. It is empty for a VM that gets its name
	// when it is created.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// Key identifies the VM permanently. It is empty if the name is empty.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Key string `json:"key,omitempty"`

	// Host is the Proxmox host as region/name.
	// +kubebuilder:validation:MaxLength=127
	Host string `json:"host"`

	// NodePool is the NodePool of the VM.
	// +kubebuilder:validation:MaxLength=253
	NodePool string `json:"nodePool"`

	// InstanceType is the instance type of the VM.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	InstanceType string `json:"instanceType,omitempty"`

	// Change is the SHA-256 of the planned change without the VM's name, VMID and key. VMs
	// with the same hash have the same configuration.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{64})?$`
	Change string `json:"change,omitempty"`

	// Reason explains the choice of this VM and its placement.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Reason string `json:"reason,omitempty"`

	// Pods are the pods that need the VM, or that must move, as namespace/name.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=317
	// +listType=atomic
	Pods []string `json:"pods,omitempty"`
}

// ScalePlanAction is the change of a VM.
//
// +kubebuilder:validation:Enum=Create;Update;Replace;Delete;Wake
type ScalePlanAction string

// The actions.
const (
	ScalePlanCreate  ScalePlanAction = "Create"
	ScalePlanUpdate  ScalePlanAction = "Update"
	ScalePlanReplace ScalePlanAction = "Replace"
	ScalePlanDelete  ScalePlanAction = "Delete"
	// ScalePlanWake starts a standby VM.
	ScalePlanWake ScalePlanAction = "Wake"
)

// ScalePlanHost is the part of the change on one host: one Terraform state.
type ScalePlanHost struct {
	// Host is the Proxmox host as region/name.
	// +kubebuilder:validation:MaxLength=127
	Host string `json:"host"`

	// PlanSHA256 is the SHA-256 of the saved plan file; empty if there is none.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{64})?$`
	// +kubebuilder:validation:MaxLength=64
	PlanSHA256 string `json:"planSHA256,omitempty"`

	// PlanDigest is the digest of the planned changes, including the names and VMIDs of new
	// VMs. Approvals refer to planHash, which does not include them.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	PlanDigest string `json:"planDigest,omitempty"`

	// Lineage and Serial identify the state on which the plan is based.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Lineage string `json:"lineage,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	Serial int64 `json:"serial,omitempty"`
}

// ScalePlanVerdict is the verdict of the guard.
type ScalePlanVerdict struct {
	// Decision is Allow, NeedsApproval or Deny. In NodePools whose approval mode is
	// manual, plans that the guard allows also require approval.
	Decision VerdictDecision `json:"decision"`

	// Rules are the rules that did not allow the plan.
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

// ScalePlanRule is a rule of the guard and its decision.
type ScalePlanRule struct {
	// Rule is the rule's name.
	// +kubebuilder:validation:MaxLength=128
	Rule string `json:"rule"`
	// Decision is the decision of the rule.
	// +optional
	Decision VerdictDecision `json:"decision,omitempty"`
	// Message describes what the rule found, and where.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
}

// ScalePlanStatus is the observed state of the change.
type ScalePlanStatus struct {
	// Phase is the current phase of the plan.
	// +optional
	Phase ScalePlanPhase `json:"phase,omitempty"`

	// Approver is the user who approved the plan.
	// +optional
	Approver string `json:"approver,omitempty"`

	// DecidedAt is the time at which the plan was approved, rejected or superseded, or expired.
	// +optional
	DecidedAt *metav1.Time `json:"decidedAt,omitempty"`

	// FinishedAt is the time at which the plan reached a final phase.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`

	// Keys are the keys of the VMs that are created under this approval.
	// +optional
	// +kubebuilder:validation:MaxItems=512
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	Keys []string `json:"keys,omitempty"`

	// Result is the result of the plan, with a hint for fixing a failure.
	// +optional
	Result string `json:"result,omitempty"`

	// PullRequest is the pull request that shows the plan at the forge. It is not set if no
	// forge is configured, or if there is none yet.
	// +optional
	PullRequest *ScalePlanPullRequest `json:"pullRequest,omitempty"`

	// Conditions report the intermediate steps.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ScalePlanPullRequest is the pull request of a plan: the same proposal at a forge, where it
// can also be approved or rejected.
type ScalePlanPullRequest struct {
	// Number is the number of the pull request in its repository.
	// +kubebuilder:validation:Minimum=1
	Number int64 `json:"number"`

	// URL is the page of the pull request.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`

	// Branch is the branch with the proposal, and Head the commit that numaform pushed to it.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Branch string `json:"branch,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Head string `json:"head,omitempty"`

	// Note is why the pull request was opened although there was another one.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Note string `json:"note,omitempty"`

	// Waits is the reason why the pull request is neither approved nor rejected.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Waits string `json:"waits,omitempty"`

	// Approved is the planHash that the merge of the pull request approved.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Approved string `json:"approved,omitempty"`

	// Rejected is the reason for the rejection, for example that the pull request was closed.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Rejected string `json:"rejected,omitempty"`

	// DecidedBy are the users of the forge who approved or rejected.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	DecidedBy string `json:"decidedBy,omitempty"`

	// Closed is set once the pull request and its branch need nothing more.
	// +optional
	Closed bool `json:"closed,omitempty"`
}

// Approval returns the hash for which the plan was approved, and by whom: in the object or,
// if that has no decision, by its pull request. It returns "" without an approval.
func (p *ScalePlan) Approval() (hash, by string) {
	if request := p.Status.PullRequest; request != nil && p.Spec.Approve == "" && p.Spec.Reject == "" {
		return request.Approved, request.DecidedBy
	}
	return p.Spec.Approve, p.Spec.ApprovedBy
}

// Rejection returns the reason for which the plan was rejected, and by whom: in the object
// or, if that has no decision, by its pull request. It returns "" without a rejection.
func (p *ScalePlan) Rejection() (reason, by string) {
	if request := p.Status.PullRequest; request != nil && p.Spec.Approve == "" && p.Spec.Reject == "" {
		return request.Rejected, request.DecidedBy
	}
	return p.Spec.Reject, p.Spec.RejectedBy
}

// ScalePlanPhase is a phase of a plan.
//
// +kubebuilder:validation:Enum=Pending;Approved;Rejected;Expired;Superseded;Applied;Failed
type ScalePlanPhase string

// The phases.
const (
	// ScalePlanPending plans await approval.
	ScalePlanPending ScalePlanPhase = "Pending"
	// ScalePlanApproved plans were approved, and are applied now or soon.
	ScalePlanApproved ScalePlanPhase = "Approved"
	// ScalePlanRejected plans were rejected by a user.
	ScalePlanRejected ScalePlanPhase = "Rejected"
	// ScalePlanExpired plans were not approved in time, or could not begin in time.
	ScalePlanExpired ScalePlanPhase = "Expired"
	// ScalePlanSuperseded plans are no longer needed.
	ScalePlanSuperseded ScalePlanPhase = "Superseded"
	// ScalePlanApplied plans were applied.
	ScalePlanApplied ScalePlanPhase = "Applied"
	// ScalePlanFailed plans were denied by the guard, or approved but not carried out in full.
	ScalePlanFailed ScalePlanPhase = "Failed"
)

// Over reports whether the phase is final.
func (p ScalePlanPhase) Over() bool {
	return p != "" && p != ScalePlanPending && p != ScalePlanApproved
}

// hashDigits is the number of digits of a plan's hash in its name.
const hashDigits = 12

// maxDiffBytes is the maximum size of the diff in a ScalePlan. etcd limits the whole object
// to 1.5 MiB.
const maxDiffBytes = 512 << 10

// ScalePlanName returns the name of the plan with the hash.
func ScalePlanName(nodePool string, direction ScaleDirection, planHash string) string {
	end := "-" + strings.ToLower(string(direction)) + "-" + planHash[:min(hashDigits, len(planHash))]
	begin := nodePool[:min(len(nodePool), 253-len(end))]
	return strings.TrimRight(begin, ".-") + end
}

// CutDiff returns the diff for a ScalePlan, in valid UTF-8, and the SHA-256 of the whole diff.
// A diff that is too long is truncated, if possible at the end of a line, and a note follows.
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
