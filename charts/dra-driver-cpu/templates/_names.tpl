{{/* What objects are called, and the labels by which they are found. The selector of a DaemonSet cannot be
     changed, so these names and labels are for good. */}}

{{- define "dracpu.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* fullnameOverride, else the release's name with the chart's, unless the one holds the other. */}}
{{- define "dracpu.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $joined := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $joined | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "dracpu.selector" -}}
app.kubernetes.io/name: {{ include "dracpu.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Labels of the pods: without versions, so that a new chart alone restarts nothing. */}}
{{- define "dracpu.podLabels" -}}
{{ include "dracpu.selector" . }}
tier: node
k8s-app: {{ include "dracpu.name" . | quote }}
{{- end -}}

{{- define "dracpu.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "dracpu.podLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
