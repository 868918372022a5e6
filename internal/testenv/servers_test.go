package testenv_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/numaform/numaform/internal/testenv"
)

func TestControlPlane(t *testing.T) {
	t.Parallel()
	cluster := testenv.ControlPlane(t)
	config, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil || !strings.HasPrefix(version.GitVersion, "v1.3") {
		t.Errorf("version %v, %v", version, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "numaform"}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Get(t.Context(), "numaform", metav1.GetOptions{}); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	if _, err := database.Query(t.Context(), "CREATE TABLE kept AS SELECT 42"); err != nil {
		t.Fatal(err)
	}
	if err := database.Restart(); err != nil {
		t.Fatal(err)
	}
	if got, err := database.Query(t.Context(), "SELECT * FROM kept"); err != nil || strings.TrimSpace(got) != "42" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := database.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := database.Query(t.Context(), "SELECT 1"); err == nil {
		t.Error("a stopped server accepts queries")
	}
}

// TestS3TakesALockOnce checks that only one of many concurrent clients can create an
// object.
func TestS3TakesALockOnce(t *testing.T) {
	t.Parallel()
	bucket := testenv.S3(t)
	const clients = 16
	statuses := make(chan int, clients)
	for range clients {
		go func() { statuses <- put(t, bucket.URL+"/"+bucket.Name+"/a.tflock") }()
	}
	count := map[int]int{}
	for range clients {
		count[<-statuses]++
	}
	if count[http.StatusOK] != 1 || count[http.StatusPreconditionFailed] != clients-1 {
		t.Errorf("statuses %v, want one 200", count)
	}
	if keys := bucket.Locks(t); len(keys) != 1 {
		t.Errorf("lock files: %v", keys)
	}
}

func put(t *testing.T, url string) int {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader("lock"))
	if err != nil {
		t.Error(err)
		return 0
	}
	request.Header.Set("If-None-Match", "*")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return 0
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	return response.StatusCode
}
