package v1alpha1_test

import (
	_ "embed"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
)

var _ status.Object = (*v1alpha1.ProxmoxNodeClass)(nil)

func parse(t *testing.T, spec string) *v1alpha1.ProxmoxNodeClass {
	t.Helper()
	nc := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	if err := yaml.UnmarshalStrict([]byte("spec: "+spec), nc); err != nil {
		t.Fatal(err)
	}
	return nc
}

// full sets most fields of a class.
//
//go:embed testdata/full.yaml
var full string

func TestSizeGiB(t *testing.T) {
	for size, want := range map[string]int64{"": 0, "40G": 40, "40Gi": 40, "2T": 2048, "1Ti": 1024} {
		got, err := (&v1alpha1.BootDevice{Size: size}).SizeGiB()
		if err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", size, got, err, want)
		}
	}
	if got, err := (*v1alpha1.BootDevice)(nil).SizeGiB(); got != 0 || err != nil {
		t.Errorf("no disk is %d (%v)", got, err)
	}
}

func TestReadyFollowsItsConditions(t *testing.T) {
	conditions := []string{
		v1alpha1.ConditionValid, v1alpha1.ConditionTemplateReady, v1alpha1.ConditionPlacementReady, v1alpha1.ConditionMetadataReady,
	}
	for _, missing := range conditions {
		nc := parse(t, full)
		for _, condition := range conditions {
			if condition != missing {
				nc.StatusConditions().SetTrue(condition)
			}
		}
		if nc.StatusConditions().Root().IsTrue() {
			t.Errorf("ready without %s", missing)
		}
		if nc.StatusConditions().SetTrue(missing); !nc.StatusConditions().Root().IsTrue() {
			t.Error("not ready with all conditions true")
		}
	}
}

func TestHostsAreCounted(t *testing.T) {
	nc := parse(t, full)
	if nc.SetHosts([]string{"lab/a", "lab/b"}); nc.Status.HostCount != 2 || len(nc.Status.Hosts) != 2 {
		t.Errorf("status is %+v, want two hosts", nc.Status)
	}
}

func TestTTL(t *testing.T) {
	for spec, want := range map[string]time.Duration{`{}`: 15 * time.Minute, `{tokenTTL: 1h}`: time.Hour} {
		if got := parse(t, spec).TTL(); got != want {
			t.Errorf("%s: token lives %s, want %s", spec, got, want)
		}
	}
}

func TestTimeToJoin(t *testing.T) {
	for spec, want := range map[string]time.Duration{`{}`: 15 * time.Minute, `{joinTimeout: 2m}`: 2 * time.Minute} {
		if got := parse(t, spec).TimeToJoin(); got != want {
			t.Errorf("%s: node may join for %s, want %s", spec, got, want)
		}
	}
}

func TestHostLoadLimit(t *testing.T) {
	for spec, want := range map[string]int{`{}`: 95, `{placement: {maxHostLoad: 80}}`: 80, `{placement: {maxHostLoad: 100}}`: 0} {
		if got := parse(t, spec).Spec.Placement.HostLoadLimit(); got != want {
			t.Errorf("%s: limit %d, want %d", spec, got, want)
		}
	}
}

func TestDeepCopyAndScheme(t *testing.T) {
	nc := parse(t, full)
	other := nc.DeepCopy()
	if diff := cmp.Diff(nc, other); diff != "" {
		t.Errorf("copy differs:\n%s", diff)
	}
	other.Spec.Networks[0].VLAN, other.Spec.BootDevice.Size = 9, "1G"
	other.Spec.Template.Tags[0], other.Spec.Sizing.Families[0], *other.Spec.MemoryOverheadMiB = "x", "x", 1
	other.Spec.Metadata.TemplatesRef.Name, other.Spec.TokenTTL.Duration = "x", 0
	other.Spec.Kubelet.KubeReserved["cpu"], *other.Spec.Kubelet.CPUCFSQuota = "9", false
	if diff := cmp.Diff(parse(t, full), nc); diff != "" {
		t.Errorf("the copy shares memory:\n%s", diff)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kinds, _, err := scheme.ObjectKinds(nc)
	if err != nil || len(kinds) != 1 || kinds[0].String() != "numaform.dev/v1alpha1, Kind=ProxmoxNodeClass" {
		t.Errorf("kinds are %v (%v)", kinds, err)
	}
}
