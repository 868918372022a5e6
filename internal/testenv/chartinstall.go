package testenv

import (
	"context"
	"fmt"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
)

// Install creates or updates objects in the cluster. It waits until the API server serves
// the kind of each object. The objects must be in creation order, as RenderChart returns
// them.
func (c *Cluster) Install(ctx context.Context, objects []*unstructured.Unstructured) error {
	api, err := kube.New(c.Config, kube.Options{})
	if err != nil {
		return fmt.Errorf("installing objects: %w", err)
	}
	for _, object := range objects {
		if err := install(ctx, api, object); err != nil {
			return fmt.Errorf("installing %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// install retries while the kind is not served yet.
func install(ctx context.Context, api kube.Client, object *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		wanted := object.DeepCopy()
		err := api.Apply(ctx, kube.ApplyConfigurationFromUnstructured(wanted), kube.ForceOwnership, kube.FieldOwner("testenv"))
		if !apimeta.IsNoMatchError(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// ServiceAccount returns a client config and the path of a kubeconfig for an existing
// ServiceAccount. Both use the same token, which is valid for a day.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, string, error) {
	clients, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return nil, "", fmt.Errorf("logging in as %s/%s: %w", namespace, name, err)
	}
	day := int64((24 * time.Hour).Seconds())
	token, err := clients.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}, metav1.CreateOptions{})
	if err != nil {
		return nil, "", fmt.Errorf("logging in as %s/%s: %w", namespace, name, err)
	}
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken, config.QPS, config.Burst = token.Status.Token, c.Config.QPS, c.Config.Burst
	path := c.file(fmt.Sprintf("%s-%s.kubeconfig", namespace, name))
	return config, path, writeKubeconfig(path, config)
}

func writeKubeconfig(path string, config *rest.Config) error {
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": {Token: config.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	})
	if err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}
