package convert

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The kinds of KubeNodeSmith, in the group kubenodesmith.parawell.cloud.
const (
	knsProvider = "NodeSmithProvider"
	knsPool     = "NodeSmithPool"
	knsPlane    = "NodeSmithControlPlane"
	knsClaim    = "NodeSmithClaim"
)

// knsRangeNote is the note about ranges of VMIDs.
const knsRangeNote = "the range belongs to the Proxmox cluster: with several providers of one cluster, it includes the ranges of all of them, and the class of each provider has its range as spec.vmidRange"

// kubeNodeSmithOptions is the table of KubeNodeSmith: api/v1alpha1, the Secret of its
// credentials and the flags of cmd/main.go.
func kubeNodeSmithOptions() []option {
	rows := []option{
		{knsProvider, "spec.type", "", "", knsType},
		{knsProvider, "spec.credentialsSecretRef.name", "numaform.yaml clusters[].token_secret_file", "the secret is in a file of its own", noted},
		{knsProvider, "spec.credentialsSecretRef.namespace", "", "the secret is in a file of its own", noted},
		{knsProvider, "spec.additionalSettings", "", "KubeNodeSmith does not read it", nil},
		{knsProvider, "spec.proxmox.endpoint", "numaform.yaml clusters[].url", "", knsCluster("url")},
		{knsProvider, "spec.proxmox.nodeWhitelist", "ProxmoxNodeClass spec.hosts", "", copied},
		{knsProvider, "spec.proxmox.vmIDRange.lower", "numaform.yaml clusters[].vmid_range.lower", knsRangeNote, knsRange("lower", func(a, b int64) int64 { return min(a, b) })},
		{knsProvider, "spec.proxmox.vmIDRange.upper", "numaform.yaml clusters[].vmid_range.upper", knsRangeNote, knsRange("upper", func(a, b int64) int64 { return max(a, b) })},
		{knsProvider, "spec.proxmox.managedNodeTag", "ProxmoxNodeClass spec.tags", "numaform recognizes its VMs by a marker in their descriptions, not by this tag", func(c *conversion, at *place) { at.put(c, []any{strings.ToLower(text(at.value))}) }},
		{knsProvider, "spec.proxmox.vmMemOverheadMiB", "ProxmoxNodeClass spec.memoryOverheadMiB", "", copied},
		{knsProvider, "spec.proxmox.networkInterfaces[].name", "", "interfaces are net0, net1 and so on, in the order of the list", kppName},
		{knsProvider, "spec.proxmox.networkInterfaces[].model", "ProxmoxNodeClass spec.networks[].model", "", copied},
		{knsProvider, "spec.proxmox.networkInterfaces[].bridge", "ProxmoxNodeClass spec.networks[].bridge", "", copied},
		{knsProvider, "spec.proxmox.networkInterfaces[].vlanTag", "ProxmoxNodeClass spec.networks[].vlan", "", copied},
		{knsProvider, "spec.proxmox.networkInterfaces[].macPrefix", "ProxmoxNodeClass spec.networks[].macPrefix", "only three octets, the first one even: numaform derives the second half of the address from the VM", knsPrefix},
		{knsProvider, "spec.proxmox.vmOptions[]", "ProxmoxNodeClass spec", "see below", knsOption},

		{knsPool, "spec.providerRef", "NodePool spec.template.spec.nodeClassRef.name", "", elsewhere},
		{knsPool, "spec.poolLabelKey", "NodePool spec.template.metadata.labels.*", "", elsewhere},
		{knsPool, "spec.limits.minNodes", "NodePool metadata.annotations.*", "the annotation numaform.dev/min-nodes: as in KubeNodeSmith, nodes are not created to reach it", knsLimit("min")},
		{knsPool, "spec.limits.maxNodes", "NodePool spec.limits.nodes", "Karpenter compares the limit before it creates nodes, so a burst can exceed it: also set spec.limits.cpu", knsLimit("nodes")},
		{knsPool, "spec.limits.cpuCores", "NodePool spec.limits.cpu", "", knsLimit("cpu")},
		{knsPool, "spec.limits.memoryMiB", "NodePool spec.limits.memory", "", knsLimit("memory")},
		{knsPool, "spec.machineTemplate.labels.*", "NodePool spec.template.metadata.labels.*", "", copied},
		{knsPool, "spec.scaleUp.stabilizationWindow", "", "KubeNodeSmith does not read it; --batch-idle-duration of numaform controller waits for further pods", nil},
		{knsPool, "spec.scaleDown.stabilizationWindow", "NodePool spec.disruption.consolidateAfter", "the time since the last change of the pods of this node, not of the pool", copied},

		{knsPlane, "spec.pools", "", "numaform works on all NodePools that refer to a ProxmoxNodeClass", nil},
		{knsClaim, "spec.**", "", "it is a running node, not configuration", nil},
		{oursSecret, "PROXMOX_TOKEN_ID", "numaform.yaml clusters[].token_id", "", elsewhere},
		{oursSecret, "PROXMOX_SECRET", "numaform.yaml clusters[].token_secret_file", "", elsewhere},
		{oursSecret, "PROXMOX_SKIP_TLS_VERIFY", "numaform.yaml clusters[].insecure", "", elsewhere},
		{kindFlags, "metrics-bind-address", "", "numaform's chart serves metrics at :8080", nil},
		{kindFlags, "health-probe-bind-address", "", "numaform's chart serves probes at :8081", nil},
		{kindFlags, "leader-elect", "", "numaform always elects a leader", nil},
	}
	for _, flag := range []string{"metrics-secure", "metrics-cert-path", "metrics-cert-name", "metrics-cert-key", "enable-http2"} {
		rows = append(rows, option{kindFlags, flag, "", "numaform's metrics have neither TLS nor authentication: the chart's NetworkPolicy limits who reads them", nil})
	}
	for _, flag := range []string{"webhook-cert-path", "webhook-cert-name", "webhook-cert-key"} {
		rows = append(rows, option{kindFlags, flag, "", "numaform has no webhook", nil})
	}
	for _, flag := range []string{"zap-devel", "zap-encoder", "zap-log-level", "zap-stacktrace-level", "zap-time-encoding"} {
		rows = append(rows, option{kindFlags, flag, "", "numaform logs JSON: set logLevel of its chart", nil})
	}
	rows = append(rows, option{kindFlags, "kubeconfig", "", "numaform's chart gives it a ServiceAccount", nil})
	for _, row := range knsOptions() {
		row.object = "vmOptions of " + knsProvider
		rows = append(rows, row)
	}
	return rows
}

// kubeNodeSmith converts the objects of KubeNodeSmith.
func (c *conversion) kubeNodeSmith(objects []Object) error {
	secrets := map[string]*Object{}
	var providers []*Object
	for i := range objects {
		switch o := &objects[i]; o.Kind {
		case oursSecret:
			secrets[o.Namespace+"/"+o.Name] = o
		case knsProvider:
			providers = append(providers, o)
		}
	}
	if len(providers) == 0 {
		return errors.New("found no " + knsProvider + ": pass the manifests of KubeNodeSmith's objects")
	}
	// Providers with the same endpoint are one Proxmox cluster, and several classes.
	clusters, shared := map[string]int{}, map[string]int{}
	for _, o := range providers {
		shared[text(o.at("spec", "proxmox", "endpoint"))]++
	}
	for _, o := range providers {
		endpoint := text(o.at("spec", "proxmox", "endpoint"))
		if _, known := clusters[endpoint]; !known {
			clusters[endpoint] = len(clusters)
		}
		region := c.Region
		if clusters[endpoint] > 0 {
			region = o.Name
		}
		c.knsRegion(o, clusters[endpoint], region, secrets)
		lower, err := strconv.ParseInt(text(o.at("spec", "proxmox", "vmIDRange", "lower")), 10, 64)
		upper, err2 := strconv.ParseInt(text(o.at("spec", "proxmox", "vmIDRange", "upper")), 10, 64)
		if shared[endpoint] > 1 && errors.Join(err, err2) == nil {
			c.spec(o.Name)["vmidRange"] = map[string]any{"lower": lower, "upper": upper}
		}
	}
	for i := range objects {
		o := &objects[i]
		switch o.Kind {
		case knsPool:
			c.knsPool(o)
		case knsPlane, knsClaim:
			c.walk(o)
		case "Deployment":
			c.walk(&Object{Kind: kindFlags, Name: o.Name, Fields: flagsOf(containers(o))})
		case oursSecret, knsProvider:
		default:
			c.line(o, "", Unknown, "", "not a kind of KubeNodeSmith's configuration")
		}
	}
	c.finishConfig()
	return nil
}

// knsRegion converts a provider to a cluster and a class.
func (c *conversion) knsRegion(o *Object, index int, region string, secrets map[string]*Object) {
	at := &place{index: []int{index}}
	config := c.object(oursConfig, "")
	put(config, "clusters[].region", at, region)
	spec := c.spec(o.Name)
	spec["region"] = region
	// KubeNodeSmith sizes each VM for its pods.
	put(spec, "sizing.policy", nil, "Flexible")
	o.cluster = index
	c.walk(o)
	if c.Template != "" {
		put(spec, "template.name", nil, c.Template)
	} else {
		c.line(o, "", Dropped, "", "KubeNodeSmith starts VMs without a template, from the network: numaform clones a template, so create one (docs/templates.md) and pass its name with --template")
	}
	namespace := text(o.at("spec", "credentialsSecretRef", "namespace"))
	name := text(o.at("spec", "credentialsSecretRef", "name"))
	secret := secrets[namespace+"/"+name]
	if secret == nil && namespace == "" {
		secret = secrets[o.Namespace+"/"+name]
	}
	if secret == nil {
		c.line(o, "spec.credentialsSecretRef", Dropped, "", "the Secret is not in the input: set token_id and token_secret_file in numaform.yaml")
		return
	}
	data := secret.data()
	for _, key := range sorted(data) {
		value := strings.TrimSpace(data[key])
		switch key {
		case "PROXMOX_TOKEN_ID":
			put(config, "clusters[].token_id", at, value)
			c.line(secret, key, Kept, "numaform.yaml clusters[].token_id", "")
		case "PROXMOX_SECRET":
			put(config, "clusters[].token_secret_file", at, c.secretFile(region+"-token", value))
			c.line(secret, key, Changed, "numaform.yaml clusters[].token_secret_file", "the secret is in a file of its own")
		case "PROXMOX_SKIP_TLS_VERIFY":
			insecure, err := boolean(value)
			if err != nil {
				c.line(secret, key, Dropped, "", err.Error())
				continue
			}
			put(config, "clusters[].insecure", at, insecure)
			c.line(secret, key, Kept, "numaform.yaml clusters[].insecure", "")
		default:
			c.line(secret, key, Unknown, "", "KubeNodeSmith does not read it")
		}
	}
}

// knsPool converts a pool to a NodePool.
func (c *conversion) knsPool(o *Object) {
	c.pool(o.Name, text(o.at("spec", "providerRef")))
	pool := c.object(oursPool, o.Name)
	key := text(o.at("spec", "poolLabelKey"))
	if key == "" {
		key = "topology.kubenodesmith.io/pool"
	}
	put(pool, "spec.template.metadata.labels.*", &place{keys: []string{key}}, o.Name)
	put(pool, "spec.disruption", nil, map[string]any{"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"})
	c.walk(o)
}

func knsType(_ *conversion, at *place) {
	if text(at.value) != "proxmox" {
		at.drop("numaform creates VMs on Proxmox only, as KubeNodeSmith does")
		return
	}
	at.verdict = Kept
}

// knsCluster sets a key of the provider's cluster.
func knsCluster(key string) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		put(c.object(oursConfig, ""), "clusters[]."+key, &place{index: []int{at.from.cluster}}, at.value)
	}
}

// knsRange extends the range of the provider's cluster.
func knsRange(end string, outer func(a, b int64) int64) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		vmid, err := strconv.ParseInt(text(at.value), 10, 64)
		if err != nil {
			at.drop("is no number")
			return
		}
		at.verdict, at.reason = Kept, ""
		cluster := c.clusters()[at.from.cluster]
		if other, ok := get(cluster, "vmid_range", end).(int64); ok && other != vmid {
			at.verdict, at.reason = Changed, at.note
			vmid = outer(vmid, other)
		}
		put(cluster, "vmid_range."+end, nil, vmid)
	}
}

var firstHalf = regexp.MustCompile(`^[0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){2}$`)

func knsPrefix(c *conversion, at *place) {
	prefix := text(at.value)
	if !firstHalf.MatchString(prefix) {
		at.verdict = Dropped
		return
	}
	at.verdict, at.reason = Kept, ""
	at.put(c, prefix)
}

func knsLimit(key string) func(*conversion, *place) {
	return func(c *conversion, at *place) {
		n, err := strconv.ParseInt(text(at.value), 10, 64)
		switch {
		case err != nil:
			at.drop("is no number")
		case n == 0:
			at.verdict, at.reason = Kept, "" // unlimited, as without the key
		case key == "min":
			put(c.object(oursPool, at.from.Name), "metadata.annotations.*", &place{keys: []string{group + "/min-nodes"}}, strconv.FormatInt(n, 10))
		case key == "memory":
			at.put(c, fmt.Sprintf("%dMi", n))
		default:
			at.put(c, strconv.FormatInt(n, 10))
		}
	}
}
