{{/* Name of all objects. */}}
{{- define "numaform.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "numaform.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "numaform.name" .) -}}
{{- end -}}

{{/* The ServiceAccount that new nodes join as. */}}
{{- define "numaform.bootstrapAccount" -}}
{{ include "numaform.name" . }}-bootstrap
{{- end -}}

{{/* The labels that select the pods of this release. They never change. */}}
{{- define "numaform.selector" -}}
app.kubernetes.io/name: numaform
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "numaform.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "numaform.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "numaform.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if the required values are set. */}}
{{- define "numaform.configured" -}}
{{- if and .Values.config.clusterID .Values.config.clusters }}true{{ end -}}
{{- end -}}

{{/* The Secret whose keys become files, or nothing. */}}
{{- define "numaform.secret" -}}
{{- if .Values.secret.existing -}}
{{ .Values.secret.existing }}
{{- else if .Values.secret.files -}}
{{ include "numaform.name" . }}
{{- end -}}
{{- end -}}

{{/* numaform.yaml: the values, with the release's namespace where none is named. */}}
{{- define "numaform.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- with $config.fleet -}}
{{- if .configmap -}}
{{- $_ := set .configmap "namespace" (.configmap.namespace | default $.Release.Namespace) -}}
{{- else -}}
{{- $_ := unset . "configmap" -}}
{{- end -}}
{{- if eq .backend.type "kubernetes" -}}
{{- $_ := set .backend "config" (merge (dict) (.backend.config | default dict) (dict "namespace" $.Release.Namespace)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Rejects a grace period that is shorter than the creation or deletion of a VM. */}}
{{- define "numaform.checkGracePeriod" -}}
{{- $grace := sub (int64 .Values.terminationGracePeriodSeconds) 60 -}}
{{- range .Values.config.clusters -}}
{{- $timeouts := .timeouts | default dict -}}
{{- $begin := toDate "2006-01-02" "2000-01-01" -}}
{{- $made := $begin | mustDateModify ($timeouts.clone | default "25m") | mustDateModify ($timeouts.start | default "5m") | unixEpoch | int64 -}}
{{- $deleted := $begin | mustDateModify ($timeouts.delete | default "5m") | unixEpoch | int64 -}}
{{- $longest := max 2100 (sub $made ($begin | unixEpoch | int64)) (sub $deleted ($begin | unixEpoch | int64)) -}}
{{- if le $grace $longest -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, but creating or deleting a VM in region %s may take %d seconds: set it to at least 61 more, or an engine may be killed before it saves its state" (int64 $.Values.terminationGracePeriodSeconds) .region $longest) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The addresses of the API server as a JSON list: from the values, or else from the cluster that helm installs into. */}}
{{- define "numaform.apiServerCIDRs" -}}
{{- $cidrs := .Values.networkPolicy.apiServerCIDRs -}}
{{- if not $cidrs -}}
{{- $cidrs = list -}}
{{- range (lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes").endpoints -}}
{{- range .addresses -}}
{{- $cidrs = append $cidrs (include "numaform.cidr" .) -}}
{{- end -}}
{{- end -}}
{{- if $cidrs -}}
{{- range ((lookup "v1" "Service" "default" "kubernetes").spec).clusterIPs -}}
{{- $cidrs = append $cidrs (include "numaform.cidr" .) -}}
{{- end -}}
{{- end -}}
{{- if and (not $cidrs) (include "numaform.configured" .) -}}
{{- fail "networkPolicy.apiServerCIDRs is empty, and the addresses of the API server cannot be read from a cluster: set it to those that `kubectl get endpointslice,service kubernetes -n default` lists, each with /32, or set networkPolicy.enabled: false" -}}
{{- end -}}
{{- end -}}
{{- $cidrs | uniq | toJson -}}
{{- end -}}

{{/* The ports of the API server as a JSON list: from the values, or else, like its addresses, from the cluster. */}}
{{- define "numaform.apiServerPorts" -}}
{{- $ports := .Values.networkPolicy.apiServerPorts -}}
{{- if not (or $ports .Values.networkPolicy.apiServerCIDRs) -}}
{{- $ports = list -}}
{{- range (lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes").ports -}}
{{- $ports = append $ports (int .port) -}}
{{- end -}}
{{- range ((lookup "v1" "Service" "default" "kubernetes").spec).ports -}}
{{- $ports = append $ports (int .port) -}}
{{- end -}}
{{- end -}}
{{- $ports | default (list 443 6443) | uniq | toJson -}}
{{- end -}}

{{/* An address as a CIDR, or nothing for a name. */}}
{{- define "numaform.cidr" -}}
{{- if regexMatch "^[0-9]+([.][0-9]+){3}$" . -}}
{{ . }}/32
{{- else if contains ":" . -}}
{{ . }}/128
{{- end -}}
{{- end -}}

{{/* The peers that the NetworkPolicy allows besides DNS and the API server, as a JSON list of objects with what, port and cidrs. A NetworkPolicy supports only addresses: a name without its CIDRs is rejected. */}}
{{- define "numaform.endpoints" -}}
{{- $policy := .Values.networkPolicy -}}
{{- $found := list -}}
{{- range $i, $cluster := .Values.config.clusters -}}
{{- range concat (list $cluster.url) ($cluster.urls | default list) | compact -}}
{{- $host := (urlParse .).host -}}
{{- $port := int (regexFind ":[0-9]+$" $host | trimPrefix ":" | default "443") -}}
{{- $cidrs := $policy.proxmoxCIDRs | default (compact (list (include "numaform.cidr" (regexReplaceAll ":[0-9]+$" $host "" | trimPrefix "[" | trimSuffix "]")))) -}}
{{- if not $cidrs -}}
{{- fail (printf "config.clusters[%d] is reached by the name %s, but a NetworkPolicy supports only addresses: set networkPolicy.proxmoxCIDRs to those of the Proxmox hosts, such as 192.0.2.0/28" $i $host) -}}
{{- end -}}
{{- $found = append $found (dict "what" "Proxmox." "port" $port "cidrs" $cidrs) -}}
{{- end -}}
{{- end -}}
{{- with (.Values.config.fleet.git).remote -}}
{{- $host := "" -}}
{{- $port := 22 -}}
{{- if contains "://" . -}}
{{- $url := urlParse . -}}
{{- $host = regexReplaceAll ":[0-9]+$" $url.host "" | trimPrefix "[" | trimSuffix "]" -}}
{{- $port = int (regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (get (dict "https" "443" "http" "80" "ssh" "22") $url.scheme | default "22")) -}}
{{- else -}}
{{- $host = regexFind "^[^/:]+:" . | trimSuffix ":" | regexFind "[^@]+$" -}}
{{- end -}}
{{- $cidrs := $policy.gitCIDRs | default (compact (list (include "numaform.cidr" $host))) -}}
{{- if and $host (not $cidrs) -}}
{{- fail (printf "config.fleet.git.remote is reached by the name %s, but a NetworkPolicy supports only addresses: set networkPolicy.gitCIDRs to those of the git server" $host) -}}
{{- end -}}
{{- if $host -}}
{{- $found = append $found (dict "what" "The fleet's repository." "port" $port "cidrs" $cidrs) -}}
{{- end -}}
{{- end -}}
{{- range $i, $target := (.Values.config.notifications).targets -}}
{{- $host := "" -}}
{{- $port := 443 -}}
{{- if $target.server -}}
{{- $host = regexReplaceAll ":[0-9]+$" $target.server "" | trimPrefix "[" | trimSuffix "]" -}}
{{- $port = int (regexFind "[0-9]+$" $target.server) -}}
{{- else if $target.url -}}
{{- $url := urlParse $target.url -}}
{{- $host = regexReplaceAll ":[0-9]+$" $url.host "" | trimPrefix "[" | trimSuffix "]" -}}
{{- $port = int (regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (get (dict "https" "443" "http" "80") $url.scheme)) -}}
{{- end -}}
{{- $cidrs := $policy.notificationCIDRs | default (compact (list (include "numaform.cidr" $host))) -}}
{{- if not $cidrs -}}
{{- fail (printf "config.notifications.targets[%d] (%s) is reached by a name, but a NetworkPolicy supports only addresses: set networkPolicy.notificationCIDRs to those of the target, or to 0.0.0.0/0 if they change; for a url_file, the port is 443" $i $target.name) -}}
{{- end -}}
{{- $found = append $found (dict "what" "Notifications." "port" $port "cidrs" $cidrs) -}}
{{- end -}}
{{- if and (include "numaform.configured" .) (not (has .Values.config.fleet.backend.type (list "kubernetes" "local"))) (not $policy.extraEgress) -}}
{{- fail (printf "config.fleet.backend.type is %s, but its address is not in the values: set networkPolicy.extraEgress to a rule with its addresses and port" .Values.config.fleet.backend.type) -}}
{{- end -}}
{{- $found | uniq | toJson -}}
{{- end -}}

{{/* true if other pods and machines can reach the web page, which requires a certificate. */}}
{{- define "numaform.pageService" -}}
{{- if and .Values.page.enabled .Values.page.tlsSecret }}true{{ end }}
{{- end }}
