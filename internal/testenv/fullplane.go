package testenv

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	schedulerName         = "kube-scheduler"
	controllerManagerName = "kube-controller-manager"
)

// managerNames returns the names of the scheduler and the controller manager.
func managerNames() []string { return []string{schedulerName, controllerManagerName} }

// accessArgs returns the arguments that configure authorization, and the address that the
// Service kubernetes forwards to. Without controllers no namespace has a default
// ServiceAccount, so the admission plugin that requires one for each pod is disabled. A full
// control plane advertises the address by which guests reach it; an API server that
// advertises a loopback address does not publish it.
func (c *Cluster) accessArgs(host string) []string {
	if !c.full {
		return []string{"--advertise-address=" + host, "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"}
	}
	args := []string{
		"--advertise-address=" + GuestLoopback,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--client-ca-file=" + c.file("ca.crt"), "--enable-bootstrap-token-auth=true",
	}
	if c.audit != "" {
		args = append(args, "--audit-log-path="+c.audit, "--audit-policy-file="+c.file("audit-policy.yaml"))
	}
	return args
}

// auditPolicy logs who requested what, once for each request.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Metadata
`

// absentControllers returns the controllers that are not run because they need a cloud or a
// storage system. Volumes are bound, but not attached.
func absentControllers() []string {
	return []string{
		"persistentvolume-attach-detach-controller", "persistentvolume-expander-controller", "selinux-warning-controller",
		"storage-version-migrator-controller", "volumeattributesclass-protection-controller",
	}
}

// startManagers starts the scheduler and the controllers. They have no data, so they are
// killed at the end.
func (c *Cluster) startManagers(tools string) error {
	if err := c.bindKubeadm(context.Background()); err != nil {
		return err
	}
	ports, err := FreePorts(len(managerNames()))
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: c.CA}})
	if err != nil {
		return err
	}
	for i, name := range managerNames() {
		args, err := c.managerArgs(name, ports[i])
		if err != nil {
			return err
		}
		manager := &server{path: filepath.Join(tools, name), interrupt: syscall.SIGKILL}
		c.managers = append(c.managers, manager)
		if err := manager.start(c.dir, args, &syscall.SysProcAttr{}, healthy(client, "https://"+ports[i]+"/healthz")); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) managerArgs(name, address string) ([]string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + c.file(name+".kubeconfig"), "--leader-elect=false", "--bind-address=" + host, "--secure-port=" + port,
		"--tls-cert-file=" + c.file("tls.crt"), "--tls-private-key-file=" + c.file("tls.key"),
		"--kube-api-qps=200", "--kube-api-burst=400",
	}
	if name != controllerManagerName {
		return args, nil
	}
	return append(
		args,
		"--controllers="+strings.Join(append([]string{"*", "bootstrap-signer-controller", "token-cleaner-controller"}, without(absentControllers())...), ","),
		"--cluster-signing-cert-file="+c.file("ca.crt"), "--cluster-signing-key-file="+c.file("ca.key"),
		"--root-ca-file="+c.file("ca.crt"), "--service-account-private-key-file="+c.file("tls.key"),
		"--use-service-account-credentials=true",
	), nil
}

func without(names []string) []string {
	result := slices.Clone(names)
	for i := range result {
		result[i] = "-" + result[i]
	}
	return result
}

// bindKubeadm creates the bindings that kubeadm creates for joining nodes: the group of its
// own tokens may request certificates, which are approved automatically, and nodes may
// renew theirs.
func (c *Cluster) bindKubeadm(ctx context.Context) error {
	const kubeadm = "system:bootstrappers:kubeadm:default-node-token"
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return err
	}
	for _, binding := range []struct{ name, role, group string }{
		{"kubeadm:kubelet-bootstrap", "system:node-bootstrapper", kubeadm},
		{"kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", kubeadm},
		{"kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"},
	} {
		_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: binding.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: binding.group}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("binding %s: %w", binding.role, err)
		}
	}
	return nil
}
