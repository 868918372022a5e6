package testenv_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"github.com/numaform/numaform/internal/testenv"
)

const kubeadmGroup = "system:bootstrappers:kubeadm:default-node-token"

// TestFullControlPlane checks that the controllers and the scheduler work, before and after
// a restart of the API server, that a request with kubeadm's token is approved
// automatically, and that the tokens of other groups and expired tokens are refused.
func TestFullControlPlane(t *testing.T) {
	t.Parallel()
	cluster := testenv.FullControlPlane(t)
	client := cluster.Client(t)
	if err := cluster.InstallCRDs(testenv.CRDs(t)...); err != nil {
		t.Fatal(err)
	}
	publishesItself(t, cluster)
	ready(t, client, "by-hand")
	for _, name := range []string{"before", "after"} {
		if name == "after" {
			if err := cluster.Restart(); err != nil {
				t.Fatal(err)
			}
		}
		deploy(t, client, name)
		within(t, "scheduling pods "+name+" the restart", func(ctx context.Context) (bool, error) {
			pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
			return err == nil && len(pods.Items) == 1 && pods.Items[0].Spec.NodeName == "by-hand", nil
		})
	}

	giveToken(t, client, "kubead", kubeadmGroup, time.Hour)
	giveToken(t, client, "foreig", "system:bootstrappers:numaform", time.Hour)
	giveToken(t, client, "expire", kubeadmGroup, 3*time.Second)
	name, err := request(t, cluster, "kubead", "joins")
	if err != nil {
		t.Fatal(err)
	}
	within(t, "signing a request of kubeadm's", func(ctx context.Context) (bool, error) {
		csr, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		return err == nil && len(csr.Status.Certificate) > 0, nil
	})
	if _, err := request(t, cluster, "foreig", "joins"); !apierrors.IsForbidden(err) {
		t.Errorf("a token of another group: %v", err)
	}
	within(t, "removing an expired token", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Secrets("kube-system").Get(ctx, "bootstrap-token-expire", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if _, err := request(t, cluster, "expire", "joins"); !apierrors.IsUnauthorized(err) {
		t.Errorf("an expired token: %v", err)
	}
}

// publishesItself checks that the Service kubernetes forwards to the address by which guests
// reach the API server, and that the API server's certificate is valid for the Service.
func publishesItself(t *testing.T, cluster *testenv.Cluster) {
	t.Helper()
	client := cluster.Client(t)
	within(t, "publishing the API server's address", func(ctx context.Context) (bool, error) {
		slice, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		return err == nil && len(slice.Endpoints) == 1 && slices.Equal(slice.Endpoints[0].Addresses, []string{testenv.GuestLoopback}), nil
	})
	service, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(cluster.Config)
	config.ServerName = service.Spec.ClusterIP
	throughService, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := throughService.Discovery().ServerVersion(); err != nil {
		t.Errorf("by the name of the Service: %v", err)
	}
}

// within fails the test if done does not return true within a minute.
func within(t *testing.T, what string, done wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, done); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// ready creates a ready Node without a kubelet.
func ready(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func deploy(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	labels := map[string]string{"app": name}
	if _, err := client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "pause"}}},
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func giveToken(t *testing.T, client kubernetes.Interface, id, group string, life time.Duration) {
	t.Helper()
	if _, err := client.CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": group, "expiration": time.Now().Add(life).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// request requests a node's certificate with a bootstrap token.
func request(t *testing.T, cluster *testenv.Cluster, id, node string) (string, error) {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: cluster.Config.Host, BearerToken: id + ".0123456789abcdef", TLSClientConfig: rest.TLSClientConfig{CAData: cluster.CA},
	})
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := certutil.MakeCSR(key, &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a certificate: %w", err)
	}
	return csr.Name, nil
}
