package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/numaform/numaform/internal/shell"
)

// kproximateOptions is the table of kproximate: the variables of kproximate/config/config.go,
// which its chart sets from values of the same names below kproximate, and the other values
// of the chart (chart/kproximate/values.yaml).
func kproximateOptions() []option {
	const queue = "numaform has no queue: one writer applies changes, and continues them after a crash"
	rows := []option{
		{kindEnvironment, "pmUrl", "numaform.yaml clusters[].url", "", kpxCluster("url")},
		{kindEnvironment, "pmAllowInsecure", "numaform.yaml clusters[].insecure", "", kpxInsecure},
		{kindEnvironment, "pmUserID", "numaform.yaml clusters[].token_id", "a user without a token becomes username", kpxUser},
		{kindEnvironment, "pmToken", "numaform.yaml clusters[].token_secret_file", "the secret is in a file of its own", kpxSecret("token")},
		{kindEnvironment, "pmPassword", "numaform.yaml clusters[].password_file", "the password is in a file of its own", kpxSecret("password")},
		{kindEnvironment, "pmDebug", "", "set --log-level debug of numaform controller", nil},
		{kindEnvironment, "debug", "values.yaml logLevel", "", kpxDebug},
		{kindEnvironment, "kpNodeNamePrefix", "NodePool metadata.name", "nodes are named NODEPOOL-VMID, so the prefix is the name of the NodePool", noted},
		{kindEnvironment, "kpNodeCores", "instance-types.json [].capacity.cpu", "one instance type of family kp", noted},
		{kindEnvironment, "kpNodeMemory", "instance-types.json [].capacity.memory", "one instance type of family kp", noted},
		{kindEnvironment, "maxKpNodes", "NodePool spec.limits.cpu", "the limit is the vCPUs of this number of nodes", noted},
		{kindEnvironment, "kpNodeTemplateName", "ProxmoxNodeClass spec.template.name", "", func(c *conversion, at *place) { put(c.spec(kpxName), "template.name", nil, text(at.value)) }},
		{kindEnvironment, "kpLocalTemplateStorage", "", "as with false, numaform clones a template on shared storage to each host that has the storage. Other templates must be on each host under the same name", kpxLocal},
		{kindEnvironment, "kpNodeLabels", "NodePool spec.template.metadata.labels.*", "without TargetHost: all nodes have the host as topology.kubernetes.io/zone, and the region of numaform.yaml as topology.kubernetes.io/region", kpxLabels},
		{kindEnvironment, "kpQemuExecJoin", "ProxmoxNodeClass spec.metadata.type", "true is agent, false is none", elsewhere},
		{kindEnvironment, "kpJoinCommand", "Secret stringData.join-command", "it runs up to three times, so it must be idempotent, and the Node must register with the taint karpenter.sh/unregistered:NoExecute and the name of the VM: see docs/join.md", kpxJoin},
		{kindEnvironment, "sshKey", "", "numaform writes SSH keys by its seed only (spec.metadata.sshAuthorizedKeys, with type cdrom): put the key into the template", kpxKey},
		{kindEnvironment, "kpNodeDisableSsh", "", "without a seed, numaform writes no SSH key", nil},
		{kindEnvironment, "loadHeadroom", "NodePool spec.disruption", "Karpenter removes a node only if its pods fit on the others: for headroom, use a CapacityBuffer (docs/nodepools.md)", noted},
		{kindEnvironment, "pollInterval", "", "numaform watches pods instead", nil},
		{kindEnvironment, "waitSecondsForProvision", "ProxmoxNodeClass spec.joinTimeout", "one timeout for both: the sum, at most 15 minutes", noted},
		{kindEnvironment, "waitSecondsForJoin", "ProxmoxNodeClass spec.joinTimeout", "one timeout for both: the sum, at most 15 minutes", noted},
		{kindEnvironment, "rabbitMQHost", "", queue, nil},
		{kindEnvironment, "rabbitMQPort", "", queue, nil},
		{kindEnvironment, "rabbitMQUser", "", queue, nil},
		{kindEnvironment, "rabbitMQPassword", "", queue, nil},

		{kindValues, "kproximate.config.**", "numaform.yaml", "converted like the variables of the same names", elsewhere},
		{kindValues, "kproximate.secrets.**", "numaform.yaml", "converted like the variables of the same names", elsewhere},
		{kindValues, "workerReplicaCount", "", "numaform applies changes to several hosts in parallel in one process", nil},
		{kindValues, "rabbitmq.**", "", queue, nil},
		{kindValues, "image.registry", "", "it is another program", nil},
		{kindValues, "image.tag", "", "it is another program", nil},
		{kindValues, "nameOverride", "", "set fullnameOverride", nil},
		{kindValues, "controllerPodAnnotations", "values.yaml podAnnotations", "", copied},
		{kindValues, "workerPodAnnotations", "", "there are no workers", nil},
		{kindValues, "podSecurityContext", "", "the chart always runs numaform as a user without privileges", nil},
		{kindValues, "securityContext", "", "the chart always runs numaform as a user without privileges", nil},
	}
	return append(rows, same(kindValues, "", oursChart+" ", "image.pullPolicy", "fullnameOverride", "resources", "nodeSelector", "tolerations")...)
}

// kpxName is the name of the class of kproximate's nodes.
const kpxName = "kproximate"

// kproximate converts the variables of kproximate.
func (c *conversion) kproximate(objects []Object) error {
	environment := Object{Kind: kindEnvironment, Fields: map[string]any{}}
	var chart []*Object
	for i := range objects {
		o := &objects[i]
		switch o.Kind {
		case kindEnvironment:
			merge(&environment, o.Fields)
		case "ConfigMap", oursSecret:
			for key, value := range o.data() {
				merge(&environment, map[string]any{key: value})
			}
		case "Deployment":
			flags := flagsOf(containers(o))
			merge(&environment, flags)
		case kindValues:
			chart = append(chart, o)
			for _, part := range []string{"config", "secrets"} {
				merge(&environment, child(child(o.Fields, "kproximate"), part))
			}
		default:
			c.line(o, "", Unknown, "", "not a kind of kproximate's configuration")
		}
	}
	if environment.Fields["pmUrl"] == nil {
		return errors.New("found no configuration of kproximate: pass its ConfigMap and Secret, its Helm values or a file of its environment variables with pmUrl")
	}
	labels := kpxPairs(text(environment.Fields["kpNodeLabels"]))
	if region := labels["topology.kubernetes.io/region"]; region != "" {
		c.Region = region
	}
	put(c.object(oursConfig, ""), "clusters[].region", nil, c.Region)
	put(c.spec(kpxName), "region", nil, c.Region)
	c.kpxPool(&environment)
	for _, o := range chart {
		c.walk(o)
	}
	c.walk(&environment)
	c.finishConfig()
	return nil
}

// merge adds variables to the environment. Empty ones are as good as missing.
func merge(environment *Object, values map[string]any) {
	for key, value := range values {
		if text(value) != "" {
			environment.Fields[key] = value
		}
	}
}

// kpxPool creates the NodePool and its instance type.
func (c *conversion) kpxPool(environment *Object) {
	number := func(key string, unset int) int {
		n, err := strconv.Atoi(text(environment.Fields[key]))
		if err != nil || n < 1 {
			return unset
		}
		return n
	}
	// The values of the chart.
	cores, memory, most := number("kpNodeCores", 2), number("kpNodeMemory", 2048), number("maxKpNodes", 3)
	prefix := text(environment.Fields["kpNodeNamePrefix"])
	if prefix == "" {
		prefix = "kp-node"
	}
	c.rawFile(oursTypes, []any{map[string]any{
		"name":     fmt.Sprintf("kp.%dVCPU-%dMB", cores, memory),
		"capacity": map[string]any{"cpu": strconv.Itoa(cores), "memory": fmt.Sprintf("%dMi", memory)},
	}})
	put(c.object(oursConfig, ""), "instance_types_file", nil, oursTypes)
	c.pool(prefix, kpxName)
	pool := c.object(oursPool, prefix)
	put(pool, "spec.limits.cpu", nil, strconv.Itoa(cores*most))
	put(pool, "spec.disruption.consolidationPolicy", nil, "WhenEmptyOrUnderutilized")
	put(pool, "spec.disruption.consolidateAfter", nil, "0s")
	spec := c.spec(kpxName)
	// kproximate waits for at least a minute; Karpenter for at most 15.
	wait := max(number("waitSecondsForProvision", 120), 60) + max(number("waitSecondsForJoin", 120), 60)
	put(spec, "joinTimeout", nil, fmt.Sprintf("%ds", min(wait, 900)))
	put(spec, "placement.spread", nil, "Hosts") // kproximate takes hosts without a node first
	if is, _ := boolean(environment.Fields["kpQemuExecJoin"]); is == true {
		put(spec, "metadata.type", nil, "agent")
		put(spec, "metadata.templatesRef.name", nil, kpxName+"-join")
	}
}

// pool creates a NodePool of a class.
func (c *conversion) pool(name, class string) {
	pool := c.object(oursPool, name)
	put(pool, "spec.template.spec.nodeClassRef", nil, map[string]any{"group": group, "kind": oursClass, "name": class})
	put(pool, "spec.template.spec.requirements", nil, []any{})
}

// kpxCluster sets a key of the only cluster.
func kpxCluster(key string) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		put(c.object(oursConfig, ""), "clusters[]."+key, nil, text(at.value))
	}
}

func kpxInsecure(c *conversion, at *place) {
	is, err := boolean(at.value)
	if err != nil {
		at.drop(err.Error())
		return
	}
	put(c.object(oursConfig, ""), "clusters[].insecure", nil, is)
}

func kpxUser(c *conversion, at *place) {
	key := "username"
	if strings.Contains(text(at.value), "!") {
		key = "token_id"
		at.verdict, at.reason = Kept, ""
	}
	put(c.object(oursConfig, ""), "clusters[]."+key, nil, text(at.value))
}

func kpxSecret(kind string) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		key := map[string]string{"token": "token_secret_file", "password": "password_file"}[kind]
		put(c.object(oursConfig, ""), "clusters[]."+key, nil, c.secretFile(kind, text(at.value)))
	}
}

func kpxDebug(c *conversion, at *place) {
	if is, _ := boolean(at.value); is == true {
		at.put(c, "debug")
	}
}

func kpxLocal(_ *conversion, at *place) {
	if is, _ := boolean(at.value); is == true {
		at.verdict, at.reason = Kept, "" // as numaform does
		return
	}
	at.verdict = Dropped
}

func kpxKey(_ *conversion, at *place) { at.verdict = Dropped }

var targetHost = regexp.MustCompile(`\{\{\s*\.?[tT]argetHost\s*\}\}`)

// kpxPairs parses labels such as "a=b,c=d".
func kpxPairs(list string) map[string]string {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(list, ",") {
		if key, value, ok := strings.Cut(strings.TrimSpace(pair), "="); ok {
			pairs[key] = value
		}
	}
	return pairs
}

func kpxLabels(c *conversion, at *place) {
	pairs := kpxPairs(text(at.value))
	at.verdict, at.reason = Kept, ""
	for _, key := range sorted(pairs) {
		switch {
		case key == "topology.kubernetes.io/region" && !targetHost.MatchString(pairs[key]):
			at.change(key + " is the region in numaform.yaml, which all nodes have as a label")
		case key == "topology.kubernetes.io/zone" && targetHost.MatchString(pairs[key]):
			at.change(key + " is the host on all nodes of numaform")
		case strings.Contains(pairs[key], "{{"):
			at.change(key + " is not kept, because labels of a NodePool are the same on all nodes: use topology.kubernetes.io/zone, which is the host")
		default:
			for _, pool := range c.all(oursPool) {
				at.keys = []string{key}
				put(pool, "spec.template.metadata.labels.*", at, pairs[key])
			}
		}
	}
}

func kpxJoin(c *conversion, at *place) {
	spec := c.spec(kpxName)
	if text(get(spec, "metadata", "type")) != "agent" {
		at.drop("kpQemuExecJoin is false, so kproximate does not run it")
		return
	}
	// kproximate runs bash -c with the command. Braces would be actions of a template.
	literal, err := json.Marshal("{{")
	if err != nil {
		at.drop(err.Error())
		return
	}
	command := "exec bash -c " + shell.Quote(text(at.value)) + "\n"
	put(c.object(oursSecret, kpxName+"-join"), "stringData", nil, map[string]any{
		"join-command": strings.ReplaceAll(command, "{{", "{{ "+string(literal)+" }}"),
	})
}
