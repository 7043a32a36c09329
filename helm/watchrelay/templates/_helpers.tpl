{{- define "watchrelay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimAll "-" -}}
{{- end -}}

{{/* A name that a Service takes: releases may have dots in theirs, or begin with a digit. */}}
{{- define "watchrelay.fullname" -}}
{{- $name := include "watchrelay.name" . -}}
{{- $full := .Values.fullnameOverride -}}
{{- if $full -}}
{{- else if regexMatch "^[0-9]" .Release.Name -}}
{{- $full = printf "%s-%s" $name .Release.Name -}}
{{- else if contains $name .Release.Name -}}
{{- $full = .Release.Name -}}
{{- else -}}
{{- $full = printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- $full | replace "." "-" | trunc 50 | trimAll "-" -}}
{{- end -}}

{{- define "watchrelay.selectorLabels" -}}
app.kubernetes.io/name: {{ include "watchrelay.name" . | toYaml }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end -}}

{{- define "watchrelay.labels" -}}
{{- $labels := include "watchrelay.selectorLabels" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/version" (.Chart.AppVersion | toString) -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- toYaml (merge $labels .Values.commonLabels) -}}
{{- end -}}

{{/* Labels of the pod: nothing that changes with the chart alone, which would restart it. */}}
{{- define "watchrelay.podLabels" -}}
{{- $labels := omit (include "watchrelay.labels" . | fromYaml) "helm.sh/chart" "app.kubernetes.io/managed-by" -}}
{{- toYaml (merge $labels .Values.podLabels) -}}
{{- end -}}

{{- define "watchrelay.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "watchrelay.fullname" .) .Values.serviceAccount.name -}}
{{- else if and .Values.rbac.create (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false without serviceAccount.name: the rights would go to the account default, so to each pod of the namespace that names no account; name one" -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "watchrelay.image" -}}
{{- $name := .Values.image.repository -}}
{{- if .Values.image.registry -}}{{- $name = printf "%s/%s" (trimSuffix "/" .Values.image.registry) $name -}}{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The port of config.observe.listen. */}}
{{- define "watchrelay.port" -}}
{{- $listen := dig "observe" "listen" ":8080" .Values.config -}}
{{- regexFind "[0-9]+$" $listen -}}
{{- end -}}

{{/* The Secret with the credentials for Kafka; empty when there are none. */}}
{{- define "watchrelay.authSecret" -}}
{{- $auth := .Values.kafka.auth -}}
{{- if $auth.existingSecret -}}{{- $auth.existingSecret -}}
{{- else if $auth.inline -}}{{- printf "%s-kafka" (include "watchrelay.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Which key of that Secret holds what, as JSON: {"username": "username"}. */}}
{{- define "watchrelay.authKeys" -}}
{{- $auth := .Values.kafka.auth -}}
{{- $keys := dict -}}
{{- if $auth.existingSecret -}}
{{- $keys = $auth.keys -}}
{{- if not $keys -}}{{- fail "kafka.auth.existingSecret needs kafka.auth.keys: which key of the Secret holds what, such as {username: username, password: password}" -}}{{- end -}}
{{- else -}}
{{- range $name, $_ := $auth.inline -}}{{- $_ := set $keys $name $name -}}{{- end -}}
{{- end -}}
{{- toJson $keys -}}
{{- end -}}

{{- define "watchrelay.hasCa" -}}
{{- $ca := .Values.kafka.ca -}}
{{- if or $ca.existingSecret $ca.existingConfigMap $ca.inline -}}true{{- end -}}
{{- end -}}

{{/* The config file of the daemon, as JSON: .Values.config with what the chart knows. */}}
{{- define "watchrelay.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $kafka := dig "kafka" dict $config -}}
{{- $security := default dict $kafka.security -}}
{{- if $security.password -}}
{{- fail "config.kafka.security.password would stand readable in a ConfigMap: name a Secret in kafka.auth.existingSecret" -}}
{{- end -}}
{{- $files := dict -}}
{{- range $name, $key := include "watchrelay.authKeys" . | fromJson -}}
{{- $_ := set $files (printf "%sFile" $name) (printf "/etc/watchrelay-kafka/auth/%s" $name) -}}
{{- end -}}
{{- if include "watchrelay.hasCa" . -}}
{{- $_ := set $files "caFile" "/etc/watchrelay-kafka/ca/ca.crt" -}}
{{- end -}}
{{- range $name, $path := $files -}}
{{- if hasKey $security $name -}}
{{- fail (printf "config.kafka.security.%s and the chart's kafka.%s say the same thing: keep one of the two" $name (eq $name "caFile" | ternary "ca" "auth")) -}}
{{- end -}}
{{- end -}}
{{- if $files -}}
{{- $_ := set $kafka "security" (merge $security $files) -}}
{{- $_ := set $config "kafka" $kafka -}}
{{- end -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- $sharding := default dict $config.sharding -}}
{{- if eq (toString (dig "enabled" true $sharding)) "false" -}}
{{- fail "config.sharding.enabled: false cannot be combined with more than one replica: the newest would claim all streams from the others" -}}
{{- end -}}
{{- $_ := set $config "sharding" (merge (dict "enabled" true) $sharding) -}}
{{- $_ := set $config "revision" (default .Release.Revision $config.revision) -}}
{{- end -}}
{{- toJson $config -}}
{{- end -}}

{{/* What restarts the pod when it changes, as text. */}}
{{- define "watchrelay.restartsWith" -}}
{{- $config := include "watchrelay.config" . | fromJson -}}
{{- $keys := (.Files.Get "files/relay.json" | fromJson).restartKeys -}}
{{- if or (eq .Values.rollout.onConfigChange "always") (has "*" $keys) -}}
{{- toJson $config -}}
{{- else -}}
{{- range $keys -}}
{{- $here := $config -}}
{{- range splitList "." . -}}
{{- if kindIs "map" $here -}}{{- $here = get $here . -}}{{- else -}}{{- $here = "" -}}{{- end -}}
{{- end -}}
{{- printf "%s=%s;" . (toJson $here) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Seconds in a duration such as 1h30m or 500ms, rounded up. */}}
{{- define "watchrelay.seconds" -}}
{{- $total := 0.0 -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" (toString .) -1 -}}
{{- $total = addf $total (mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[a-z]+$" .))) -}}
{{- end -}}
{{- ceil $total | int -}}
{{- end -}}

{{/* MiB in a size such as 64MiB, 256Mi, 1Gi, 500M or a number of bytes, rounded down. */}}
{{- define "watchrelay.mebibytes" -}}
{{- $units := dict "" 1.0 "k" 1000.0 "K" 1000.0 "Ki" 1024.0 "M" 1e6 "Mi" 1048576.0 "G" 1e9 "Gi" 1073741824.0 -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+(e\\+[0-9]+)?" $text | float64 -}}
{{- divf (mulf $number (get $units (regexFind "[kKMG]i?" $text))) 1048576.0 | floor | int -}}
{{- end -}}

{{/* The warning about the memory limit if queues that fill while Kafka is away do not fit into it; else nothing. */}}
{{- define "watchrelay.memoryShort" -}}
{{- $config := .Values.config -}}
{{- $writers := 0 -}}
{{- range $config.resources -}}
{{- $entry := merge (deepCopy .) (default dict $config.defaults) -}}
{{- $streams := ternary (max 1 (len (default list $entry.namespaces))) 1 (ne $entry.scope "cluster") -}}
{{- $writers = add $writers (mul $streams (default 1 $entry.split)) -}}
{{- end -}}
{{- $limit := dig "limits" "memory" "" .Values.resources -}}
{{- $queues := mul $writers (include "watchrelay.mebibytes" (default "64MiB" $config.queueBytes) | int) -}}
{{- if and $limit (gt (add 64 $queues | int) (include "watchrelay.mebibytes" $limit | int)) -}}
{{- printf "while Kafka is away %d queues may hold up to %d MiB for it (config.queueBytes), and the memory limit is %v: raise resources.limits.memory and requests, or lower config.queueBytes." $writers $queues $limit -}}
{{- end -}}
{{- end -}}

{{- define "watchrelay.gracePeriod" -}}
{{- $drain := include "watchrelay.seconds" (dig "shutdown" "drainTimeout" "20s" .Values.config) | int -}}
{{- $grace := .Values.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $grace -}}
{{- add $drain 10 -}}
{{- else if lt (int $grace) (int (add $drain 5)) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, but the drain takes up to %d s: give it at least %d" (int $grace) $drain (int (add $drain 5))) -}}
{{- else -}}
{{- int $grace -}}
{{- end -}}
{{- end -}}

{{/* Environment, mounts and volumes: the same for the daemon and for the connection test. */}}
{{- define "watchrelay.volumeMounts" -}}
- name: config
  mountPath: /etc/watchrelay
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if include "watchrelay.authSecret" . }}
- name: kafka-auth
  mountPath: /etc/watchrelay-kafka/auth
  readOnly: true
{{- end }}
{{- if include "watchrelay.hasCa" . }}
- name: kafka-ca
  mountPath: /etc/watchrelay-kafka/ca
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "watchrelay.volumes" -}}
{{- $ca := .Values.kafka.ca -}}
- name: config
  configMap:
    name: {{ include "watchrelay.fullname" . | toYaml }}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- with include "watchrelay.authSecret" . }}
- name: kafka-auth
  secret:
    secretName: {{ toYaml . }}
    defaultMode: 0440
    items:
      {{- range $name, $key := include "watchrelay.authKeys" $ | fromJson }}
      - key: {{ $key | quote }}
        path: {{ $name | toYaml }}
      {{- end }}
{{- end }}
{{- if include "watchrelay.hasCa" . }}
- name: kafka-ca
  {{- if $ca.existingSecret }}
  secret:
    secretName: {{ $ca.existingSecret | toYaml }}
    items:
      - key: {{ $ca.key | quote }}
        path: ca.crt
  {{- else }}
  configMap:
    name: {{ default (printf "%s-kafka-ca" (include "watchrelay.fullname" .)) $ca.existingConfigMap | toYaml }}
    items:
      - key: {{ ternary $ca.key "ca.crt" (ne $ca.existingConfigMap "") | quote }}
        path: ca.crt
  {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Scheduling and identity of every pod of the chart. */}}
{{- define "watchrelay.podBasics" -}}
serviceAccountName: {{ include "watchrelay.serviceAccountName" . | toYaml }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- if not (kindIs "invalid" .Values.hostUsers) }}
hostUsers: {{ .Values.hostUsers }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
