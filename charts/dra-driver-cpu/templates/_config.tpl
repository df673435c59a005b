{{/* The driver's configuration file, and where it finds the files that it names. */}}

{{/* Text as it is; a whole number as text; nothing for nothing. */}}
{{- define "dracpu.text" -}}
{{- if kindIs "string" . }}{{ . }}{{ else if not (kindIs "invalid" .) }}{{ printf "%d" (int64 .) }}{{ end -}}
{{- end -}}

{{- define "dracpu.kubeletRootDir" -}}
{{- .Values.kubeletRootDir | default "/var/lib/kubelet" | trimSuffix "/" -}}
{{- end -}}

{{- define "dracpu.nriDir" -}}
{{- (.Values.hostPaths).nri | default "/var/run/nri" | trimSuffix "/" -}}
{{- end -}}

{{- define "dracpu.cdiDir" -}}
{{- (.Values.hostPaths).cdi | default "/var/run/cdi" | trimSuffix "/" -}}
{{- end -}}

{{/* Of an entry of `strategies`: which of the sources it has, separated by blanks. */}}
{{- define "dracpu.strategy.sources" -}}
{{- $entry := . -}}
{{- $sources := list -}}
{{- range list "image" "configMap" "hostPath" -}}
{{- if get $entry . }}{{ $sources = append $sources . }}{{ end -}}
{{- end -}}
{{- join " " $sources -}}
{{- end -}}

{{/* Not below /etc/dracpu: that is a ConfigMap, and read-only. */}}
{{- define "dracpu.strategy.dir" -}}
/strategies/{{ .name }}
{{- end -}}

{{- define "dracpu.strategy.path" -}}
{{- include "dracpu.strategy.dir" . }}/
{{- if .image }}{{ trimPrefix "/" .image.path }}
{{- else if .configMap }}{{ .configMap.key }}
{{- else if .hostPath }}{{ base .hostPath.path }}
{{- end -}}
{{- end -}}

{{/* driverConfig, with what is set in `args` over it, and `strategies` with the paths at which they are mounted. */}}
{{- define "dracpu.config" -}}
{{- $config := deepCopy (.Values.driverConfig | default dict) -}}
{{- if not (get $config "apiVersion") }}{{ $_ := set $config "apiVersion" "v1alpha1" }}{{ end -}}
{{- range list "cpuDeviceMode" "groupBy" "reservedCPUs" "hostnameOverride" -}}
{{- $value := include "dracpu.text" (index $.Values.args .) -}}
{{- if $value }}{{ $_ := set $config . $value }}{{ end -}}
{{- end -}}
{{- if .Values.strategies -}}
{{- $entries := list -}}
{{- range .Values.strategies -}}
{{- $entry := dict "name" .name "path" (include "dracpu.strategy.path" .) -}}
{{- with .digest }}{{ $_ := set $entry "digest" . }}{{ end -}}
{{- with .limits }}{{ $_ := set $entry "limits" . }}{{ end -}}
{{- with .options }}{{ $_ := set $entry "options" . }}{{ end -}}
{{- $entries = append $entries $entry -}}
{{- end -}}
{{- $_ := set $config "strategies" $entries -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The strategy that new claims get, by the driver's own rules. */}}
{{- define "dracpu.allocator" -}}
{{- $config := include "dracpu.config" . | fromYaml -}}
{{- $default := ternary "external" "packed" (eq (get $config "groupBy" | default "") "machine") -}}
{{- $name := get $config "allocator" | default $default -}}
{{- ternary "packed" $name (eq $name "cpumanager") -}}
{{- end -}}
