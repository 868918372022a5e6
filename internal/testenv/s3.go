package testenv

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// The credentials of the S3 server, and its region.
const (
	S3AccessKey = "AKIANUMAFORMTEST0000"
	S3SecretKey = "canary-of-s3-0123456789abcdefghijklmnopq" //nolint:gosec // of a server that lives for a test
	S3Region    = "eu-test-1"
)

// Bucket is the bucket of an S3 server.
type Bucket struct {
	*httptest.Server
	// Name is the name of the bucket.
	Name string

	backend gofakes3.Backend
	down    atomic.Bool
}

// S3 starts an S3 server with one bucket. The server is stopped at the end of the test. It
// honors If-None-Match, which the lock files of Terraform need, and does not verify
// signatures: any credentials work.
func S3(t testing.TB) *Bucket {
	t.Helper()
	b := &Bucket{Name: "numaform-states", backend: s3mem.New()}
	if err := b.backend.CreateBucket(b.Name); err != nil {
		t.Fatal(err)
	}
	handler := gofakes3.New(b.backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.down.Load() {
			http.Error(w, "out of order", http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(b.Close)
	return b
}

// Down sets whether the server refuses all requests, with status 503.
func (b *Bucket) Down(down bool) { b.down.Store(down) }

// Keys lists the bucket's objects.
func (b *Bucket) Keys(t testing.TB) []string {
	t.Helper()
	list, err := b.backend.ListBucket(b.Name, nil, gofakes3.ListBucketPage{})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, object := range list.Contents {
		keys = append(keys, object.Key)
	}
	return keys
}

// Locks lists the lock files in the bucket.
func (b *Bucket) Locks(t testing.TB) []string {
	t.Helper()
	var locks []string
	for _, key := range b.Keys(t) {
		if strings.HasSuffix(key, ".tflock") {
			locks = append(locks, key)
		}
	}
	return locks
}

// Env returns the environment variables with the server's address and credentials.
func (b *Bucket) Env() map[string]string {
	return map[string]string{
		"AWS_ACCESS_KEY_ID": S3AccessKey, "AWS_SECRET_ACCESS_KEY": S3SecretKey, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ENDPOINT_URL_S3": b.URL,
	}
}

// Settings returns the settings of the s3 backend for this server.
func (b *Bucket) Settings() map[string]string {
	return map[string]string{
		"bucket": b.Name, "region": S3Region, "use_path_style": "true", "max_retries": "1",
		"skip_credentials_validation": "true", "skip_requesting_account_id": "true", "skip_metadata_api_check": "true",
		"skip_region_validation": "true",
	}
}
