{{/* Name of all objects. */}}
{{- define "numaform.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "numaform.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "numaform.name" .) -}}
{{- end -}}

{{/* What tells the pods of this release from all others. It never changes. */}}
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

{{/* "true" if there is enough to run with. */}}
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

{{/* Refuses a grace period in which a VM may not be finished. */}}
{{- define "numaform.checkGracePeriod" -}}
{{- $grace := sub (int64 .Values.terminationGracePeriodSeconds) 60 -}}
{{- range .Values.config.clusters -}}
{{- $timeouts := .timeouts | default dict -}}
{{- $begin := toDate "2006-01-02" "2000-01-01" -}}
{{- $made := $begin | mustDateModify ($timeouts.clone | default "25m") | mustDateModify ($timeouts.start | default "5m") | unixEpoch | int64 -}}
{{- $deleted := $begin | mustDateModify ($timeouts.delete | default "5m") | unixEpoch | int64 -}}
{{- $longest := max 2100 (sub $made ($begin | unixEpoch | int64)) (sub $deleted ($begin | unixEpoch | int64)) -}}
{{- if le $grace $longest -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, and what is made or deleted in region %s may take %d seconds to end: set it at least 61 above that, or an engine is killed that saves nothing" (int64 $.Values.terminationGracePeriodSeconds) .region $longest) -}}
{{- end -}}
{{- end -}}
{{- end -}}
