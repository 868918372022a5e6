package scheduling_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/scheduling"
)

func TestClosedOffersAreNotMade(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		closed []scheduling.OfferingSelector
		want   []string
		refuse string
	}{
		{"none", nil, []string{"epyc c1.4VCPU-8GB"}, ""},
		{"another's", []scheduling.OfferingSelector{{NodePool: "other"}, {Host: hostID("mars")}, {InstanceType: "x"}}, []string{"epyc c1.4VCPU-8GB"}, ""},
		{"hosts", []scheduling.OfferingSelector{{Host: hostID("ryzen")}, {Host: hostID("epyc")}}, []string{"xeon c1.4VCPU-8GB"}, ""},
		{"a type", []scheduling.OfferingSelector{{InstanceType: "c1.4VCPU-8GB"}}, []string{"epyc t1.4VCPU-12GB"}, ""},
		{"a type on a host", []scheduling.OfferingSelector{
			{NodePool: "general", InstanceType: "c1.4VCPU-8GB", Host: hostID("epyc")}, {Host: hostID("ryzen")},
		}, []string{"xeon c1.4VCPU-8GB"}, ""},
		{"a pool", []scheduling.OfferingSelector{{NodePool: "general"}}, nil, "lab/xeon) is temporarily unavailable"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := load(t, classes, nodePool("general", "shared", ""), deployment("a", 1, "3", "1Gi", ""))
			d, err := c.Decide(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: lab(), Unavailable: test.closed})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range d.New {
				got = append(got, string(n.Placement.Host.Host)+" "+n.Spec.InstanceType)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("made differs:\n%s", diff)
			}
			if test.refuse != "" && (len(d.Refused) != 1 || !strings.Contains(d.Refused[0].Reason, test.refuse)) {
				t.Errorf("refused %+v, want %q", d.Refused, test.refuse)
			}
		})
	}
}
