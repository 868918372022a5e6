// Package logkey defines the names of log fields, so that one search finds all lines about
// an object. Names that Karpenter also uses are spelled as in Karpenter.
package logkey

// The fields of log lines.
const (
	NodeClaim = "NodeClaim"
	NodeClass = "ProxmoxNodeClass"
	NodePool  = "NodePool"
	Node      = "Node"
	Pods      = "pods"
	// InstanceType is the name of an instance type, as in the Node's label.
	InstanceType = "instance-type"

	Region = "region"
	// Host is region/name.
	Host = "host"
	// VM is a VM's name, which equals its Node's name.
	VM   = "vm"
	VMID = "vmid"
	// Key is a VM's fleet.Key.
	Key = "key"

	Workspace  = "workspace"
	PlanSHA256 = "plan-sha256"
	// Change is the id of a change of the fleet.
	Change = "change"
	// Place has copies of the history's checkpoints.
	Place = "place"
	// Kind is the cause of a change, and Verdict the guard's decision about a plan.
	Kind    = "kind"
	Verdict = "verdict"
	// Duration is how long an operation took.
	Duration = "duration"
	Reason   = "reason"
	// Age is how long something has lasted.
	Age = "age"

	// Request is a CertificateSigningRequest.
	Request = "CertificateSigningRequest"
	// Message is a sentence, such as the text of an error, an event or a condition.
	Message = "message"
	// Volume is a volume of Proxmox.
	Volume = "volume"
	// Token is the jti of a join token, or the public half of a bootstrap token.
	Token = "join-token"

	// ScalePlan is the name of a ScalePlan.
	ScalePlan = "ScalePlan"
	// Approver is the user who approved a plan.
	Approver = "approver"
	// PullRequest is the number of a pull request.
	PullRequest = "pull-request"
	// Target is the name of a target of notifications.
	Target = "target"
	// Phase is the phase of a ScalePlan.
	Phase = "phase"
)
