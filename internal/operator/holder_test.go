package operator_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/numaform/numaform/internal/operator"
)

func TestHolderGone(t *testing.T) {
	t.Parallel()
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "numaform", Name: name}, Status: corev1.PodStatus{Phase: phase}}
	}
	pods := fake.NewClientBuilder().WithObjects(
		pod("numaform-5d8f7c9b4-aaaaa", corev1.PodRunning),
		pod("numaform-5d8f7c9b4-bbbbb", corev1.PodFailed),
	).Build()
	for _, test := range []struct {
		self, host string
		// proof is a part of the proof; empty means that the holder is not known to be
		// dead.
		proof string
	}{
		{"numaform-5d8f7c9b4-zzzzz", "numaform-5d8f7c9b4-zzzzz", "this host"},
		{"numaform-5d8f7c9b4-zzzzz", "numaform-5d8f7c9b4-aaaaa", ""},
		{"numaform-5d8f7c9b4-zzzzz", "numaform-5d8f7c9b4-bbbbb", "has ended (Failed)"},
		{"numaform-5d8f7c9b4-zzzzz", "numaform-6f4b8d7c95-ccccc", "no longer exists"},
		{"numaform-5d8f7c9b4-zzzzz", "another-5d8f7c9b4-aaaaa", ""},
		{"numaform-5d8f7c9b4-zzzzz", "alices-laptop", ""},
		{"alices-laptop", "numaform-5d8f7c9b4-ccccc", ""},
		{"alices-laptop", "alices-laptop", "this host"},
	} {
		proof, gone := operator.HolderGone(context.Background(), pods, test.self, test.host)
		if gone != (test.proof != "") || (gone && !strings.Contains(proof, test.proof)) {
			t.Errorf("asked by %s about %s: %t, %q", test.self, test.host, gone, proof)
		}
	}
}
