// Package charts embeds the custom resource definitions of the Helm chart, so that manifests
// on disk are validated by the schema that an API server uses.
package charts

import _ "embed"

// ProxmoxNodeClass is the CustomResourceDefinition of ProxmoxNodeClasses, in YAML.
//
//go:embed numaform/crds/numaform.dev_proxmoxnodeclasses.yaml
var ProxmoxNodeClass []byte
