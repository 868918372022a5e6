// Package logkey names the fields of log lines, each once, so that one search
// finds all lines about one thing. Where Karpenter has a spelling, it is
// Karpenter's.
package logkey

// The fields of log lines.
const (
	NodeClaim  = "NodeClaim"
	NodeClass  = "ProxmoxNodeClass"
	NodePool   = "NodePool"
	Node       = "Node"
	Pods       = "pods"
	ProviderID = "provider-id"
	// InstanceType is the name of a type, as in the Node's label.
	InstanceType = "instance-type"

	Region = "region"
	// Host is region/name.
	Host = "host"
	// VM is a VM's name, which is its Node's.
	VM   = "vm"
	VMID = "vmid"
	// Key is a VM's fleet.Key.
	Key = "key"

	Workspace  = "workspace"
	PlanSHA256 = "plan-sha256"
	// Change is the id of a change of the fleet.
	Change = "change"
	Reason = "reason"
	// Age is how long something has lasted.
	Age = "age"

	// Request is a CertificateSigningRequest.
	Request = "CertificateSigningRequest"
	// Message is a sentence that stands in an event or a condition too.
	Message = "message"
	// Volume is a volume of Proxmox.
	Volume = "volume"
	// Token is the jti of a join token, or the public half of a bootstrap token.
	Token = "join-token"

	// ScalePlan is the name of a change that waits for a person.
	ScalePlan = "ScalePlan"
	// Approver is who let a plan pass.
	Approver = "approver"
	// Phase is how far a ScalePlan is.
	Phase = "phase"
)
