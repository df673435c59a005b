{{/* Rules between values, and those whose message should say what to do. All mistakes come in one message.
     values.schema.json, which Helm looks at first, has the rules for single values. */}}
{{- define "dracpu.checks" -}}
{{- $problems := list -}}
{{- $driverConfig := .Values.driverConfig | default dict -}}
{{- $strategies := .Values.strategies | default list -}}

{{- if not (hasKey .Values "hostPaths") -}}
{{- $problems = append $problems "the values are those of an older chart, its image among them; upgrade with --reset-then-reuse-values in place of --reuse-values" -}}
{{- end -}}

{{- /* Keys of the file. */ -}}
{{- $keys := list "apiVersion" "cpuDeviceMode" "groupBy" "allocator" "strategies" "strategyOptions" "allowedStrategies" "reservedCPUs" "reservedCPUCount" "minSharedCPUs" "cfsQuota" "hostnameOverride" "kubeconfig" "sysfsOverlay" "publishNodeAllocatableResourceMapping" "claimStatus" -}}
{{- $elsewhere := dict "bindAddress" "healthzPort" "exposePCIeRoots" "args.exposePCIeRoots" "kubeletRootDir" "kubeletRootDir" "nriSocket" "hostPaths.nri" "cdiDir" "hostPaths.cdi" -}}
{{- range $key := keys $driverConfig | sortAlpha -}}
{{- if hasKey $elsewhere $key -}}
{{- $problems = append $problems (printf "driverConfig.%s: not a key of the driver's configuration file; set the chart's value %s" $key (get $elsewhere $key)) -}}
{{- else if not (has $key $keys) -}}
{{- $meant := "" -}}
{{- range $keys }}{{ if eq (lower .) (lower $key) }}{{ $meant = . }}{{ end }}{{ end -}}
{{- $hint := ternary (printf "known are %s" (join ", " $keys)) (printf "did you mean %s?" $meant) (eq $meant "") -}}
{{- $problems = append $problems (printf "driverConfig.%s: not a key of the driver's configuration file; %s" $key $hint) -}}
{{- end -}}
{{- end -}}

{{- /* Strategies, one by one. */ -}}
{{- $names := list -}}
{{- range $index, $entry := $strategies -}}
{{- $where := printf "strategies[%d] (%s)" $index $entry.name -}}
{{- if has $entry.name $names -}}
{{- $problems = append $problems (printf "%s: the name is there twice; each strategy needs its own" $where) -}}
{{- end -}}
{{- $names = append $names $entry.name -}}
{{- if eq $entry.name "cpumanager" -}}
{{- $problems = append $problems (printf "%s: cpumanager always stands for the built-in strategy packed; use the name that the component gives itself" $where) -}}
{{- end -}}
{{- $sources := include "dracpu.strategy.sources" $entry | splitList " " | compact -}}
{{- if eq (len $sources) 0 -}}
{{- $problems = append $problems (printf "%s: has no source; set one of image, configMap and hostPath" $where) -}}
{{- else if gt (len $sources) 1 -}}
{{- $problems = append $problems (printf "%s: has %d sources (%s); keep one of them" $where (len $sources) (join ", " $sources)) -}}
{{- end -}}
{{- with $entry.image -}}
{{- if or (has ".." (splitList "/" .path)) (hasSuffix "/" .path) -}}
{{- $problems = append $problems (printf "%s: image.path: %s is not the path of a file within the image" $where (quote .path)) -}}
{{- end -}}
{{- end -}}
{{- with $entry.hostPath -}}
{{- if or (not (hasPrefix "/" .path)) (hasSuffix "/" .path) (has ".." (splitList "/" .path)) -}}
{{- $problems = append $problems (printf "%s: hostPath.path: %s is not the absolute path of a file" $where (quote .path)) -}}
{{- else if eq (dir .path) "/" -}}
{{- $problems = append $problems (printf "%s: hostPath.path: %s lies in the host's root directory, and the file's directory is mounted; put it into one of its own" $where (quote .path)) -}}
{{- end -}}
{{- end -}}
{{- with $entry.digest -}}
{{- if not (regexMatch "^sha256:[0-9a-f]{64}$" .) -}}
{{- $problems = append $problems (printf "%s: digest: %s is not sha256: with 64 lower-case hex digits" $where (quote .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Strategies and the rest. */ -}}
{{- if and $strategies (get $driverConfig "strategies") -}}
{{- $problems = append $problems "strategies and driverConfig.strategies are both set; move all entries to one of them (strategies mounts the files, driverConfig.strategies expects paths that extraVolumes provide)" -}}
{{- end -}}
{{- $config := include "dracpu.config" . | fromYaml -}}
{{- if eq (get $config "cpuDeviceMode" | default "") "individual" -}}
{{- $where := ternary "args.cpuDeviceMode" "driverConfig.cpuDeviceMode" (not (empty .Values.args.cpuDeviceMode)) -}}
{{- if get $config "strategies" -}}
{{- $problems = append $problems (printf "%s: individual publishes every CPU and lets the scheduler choose, so no strategy is ever asked; remove strategies, or use grouped" $where) -}}
{{- end -}}
{{- range list "strategyOptions" "allowedStrategies" -}}
{{- if get $config . -}}
{{- $problems = append $problems (printf "%s: individual publishes every CPU and lets the scheduler choose, so no strategy is ever asked; remove driverConfig.%s, or use grouped" $where .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq (get $config "groupBy" | default "") "machine") (ne (get $config "cpuDeviceMode" | default "") "individual") (eq (get $driverConfig "allocator" | default "") "cpumanager") -}}
{{- $problems = append $problems "driverConfig.allocator: cpumanager does not serve groupBy machine; name another strategy, or group by numanode or socket" -}}
{{- end -}}
{{- $known := list "packed" "cpumanager" "external" "llc-first" -}}
{{- range get $config "strategies" | default list }}{{ $known = append $known (get . "name" | default "") }}{{ end -}}
{{- $named := dict "allocator" (get $driverConfig "allocator" | default "" | list | compact) "allowedStrategies" (get $driverConfig "allowedStrategies" | default list) -}}
{{- range $key, $names := $named -}}
{{- range $names -}}
{{- if not (has . $known) -}}
{{- $problems = append $problems (printf "driverConfig.%s: %s is neither built in (packed, cpumanager, external, llc-first) nor the name of an entry of strategies" $key (quote .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The kubelet's directory: no unix socket path may be longer than 107 bytes, and the longest below the
       directory is 34. */ -}}
{{- if kindIs "string" .Values.kubeletRootDir -}}
{{- $root := include "dracpu.kubeletRootDir" . -}}
{{- if not (hasPrefix "/" .Values.kubeletRootDir) -}}
{{- $problems = append $problems (printf "kubeletRootDir: %s is not an absolute path; leave the value out for /var/lib/kubelet" (quote .Values.kubeletRootDir)) -}}
{{- else if eq $root "" -}}
{{- $problems = append $problems "kubeletRootDir: \"/\" is not the kubelet's directory; leave the value out for /var/lib/kubelet" -}}
{{- else if gt (len $root) 73 -}}
{{- $problems = append $problems (printf "kubeletRootDir: %d characters are %d too many for the sockets below it" (len $root) (sub (len $root) 73)) -}}
{{- end -}}
{{- end -}}

{{- /* Pods. */ -}}
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- if hasKey ($.Values.podLabels | default dict) . -}}
{{- $problems = append $problems (printf "podLabels: %s is what the DaemonSet finds its pods by; choose another label" .) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.podAnnotations | default dict) "checksum/config" -}}
{{- $problems = append $problems "podAnnotations: checksum/config is the chart's own; choose another annotation" -}}
{{- end -}}
{{- if and (.Values.podMonitor).enabled (.Values.serviceMonitor).enabled -}}
{{- $problems = append $problems "podMonitor.enabled and serviceMonitor.enabled are both true: every metric would be scraped twice; keep one" -}}
{{- end -}}

{{- if $problems -}}
{{- fail (printf "values refused:\n  - %s" (join "\n  - " $problems)) -}}
{{- end -}}
{{- end -}}
