package v1alpha1

// ConditionScaleUpReady is a condition of NodePools: it is false while no new node of the
// NodePool can be created, and its reason and message contain the cause and the fix. It
// does not affect the condition Ready, because Karpenter deletes the NodeClaims that wait
// in a NodePool that is not ready.
const ConditionScaleUpReady = "ScaleUpReady"

// The reasons why new nodes wait. Each is the reason of the events on pods, NodeClaims and
// NodePools, the reason of ConditionScaleUpReady, and a value of the label reason of
// numaform_waiting_vms. The last two are only of NodePools.
const (
	// ReasonPendingApproval: a ScalePlan is pending approval.
	ReasonPendingApproval = "PendingApproval"
	// ReasonPlanRejected: an operator rejected the ScalePlan recently.
	ReasonPlanRejected = "PlanRejected"
	// ReasonPlanDenied: the guard denies the plan, which no approval can change.
	ReasonPlanDenied = "PlanDenied"
	// ReasonStateBackendUnreachable: the backend of the Terraform states does not respond.
	ReasonStateBackendUnreachable = "StateBackendUnreachable"
	// ReasonChangePostponed: no change can begin, for example because the fleet's repository
	// cannot be reached or refuses numaform's pushes.
	ReasonChangePostponed = "ChangePostponed"
	// ReasonHistoryRewritten: records of the fleet's history are missing or were replaced, or
	// the store is older than the history.
	ReasonHistoryRewritten = "HistoryRewritten"
	// ReasonLimitReached: the NodePool's nodes have reached spec.limits, or would exceed it
	// with a node that pods need.
	ReasonLimitReached = "LimitReached"
	// ReasonFixedSizeNotSupported: the NodePool has spec.replicas.
	ReasonFixedSizeNotSupported = "FixedSizeNotSupported"
	// ReasonLabelInvalid: the NodePool has a label of numaform's group, or of
	// karpenter-provider-proxmox, that numaform does not set.
	ReasonLabelInvalid = "LabelInvalid"
)
