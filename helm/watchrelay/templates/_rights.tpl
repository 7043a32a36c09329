{{/*
The rights that the config needs, as `watchrelay rbac` computes them (watchrelay/config/rights.py; a test holds the two equal), as JSON:
{"cluster": [rule...], "namespaced": {"shop": [rule...]}}. Names are resolved with the table of built-in resources in files/relay.json.
*/}}
{{- define "watchrelay.rights" -}}
{{- $table := (.Files.Get "files/relay.json" | fromJson).resources -}}
{{- $defaults := default dict .Values.config.defaults -}}
{{- $cluster := dict -}}
{{- $namespaced := dict -}}
{{- range $index, $entry := .Values.config.resources -}}
{{- $found := include "watchrelay.plural" (dict "text" $entry.resource "table" $table "index" $index) | fromJson -}}
{{- $namespaces := default list (ternary $entry.namespaces $defaults.namespaces (hasKey $entry "namespaces")) -}}
{{- $scope := default "namespace" (ternary $entry.scope $defaults.scope (hasKey $entry "scope")) -}}
{{- if and $namespaces (not $found.namespaced) -}}
{{- fail (printf "config.resources[%d].namespaces: %s is cluster-scoped: its entry stays pending as long as it has namespaces; remove namespaces from the entry" $index $found.plural) -}}
{{- end -}}
{{- $grant := printf "%s|%s|%s" $found.group $found.plural (default "" $entry.name) -}}
{{- if and $namespaces (eq $scope "namespace") -}}
{{- range $namespaces -}}
{{- $_ := set $namespaced . (merge (dict $grant true) (default dict (get $namespaced .))) -}}
{{- end -}}
{{- else -}}
{{- $_ := set $cluster $grant true -}}
{{- end -}}
{{- end -}}
{{- $rights := dict "cluster" (include "watchrelay.rules" (dict "wanted" $cluster "already" dict) | fromJsonArray) "namespaced" dict -}}
{{- range $namespace, $grants := $namespaced -}}
{{- $rules := include "watchrelay.rules" (dict "wanted" $grants "already" $cluster) | fromJsonArray -}}
{{- if $rules -}}{{- $_ := set $rights.namespaced $namespace $rules -}}{{- end -}}
{{- end -}}
{{- toJson $rights -}}
{{- end -}}

{{/* Group, plural and scope of one resource's name. What is not built in counts as namespaced. */}}
{{- define "watchrelay.plural" -}}
{{- $whole := regexReplaceAll "/.*$" .text "" -}}
{{- $version := ternary (regexReplaceAll "^[^/]*/" .text "") "" (contains "/" .text) -}}
{{- $name := regexReplaceAll "\\..*$" $whole "" -}}
{{- $group := ternary (regexReplaceAll "^[^.]*\\." $whole "") "" (contains "." $whole) -}}
{{- $first := regexReplaceAll "\\..*$" $group "" -}}
{{- if regexMatch "^v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?$" $first -}}
{{- $version = $first -}}
{{- $group = ternary (regexReplaceAll "^[^.]*\\." $group "") "" (contains "." $group) -}}
{{- end -}}
{{- $found := dict -}}
{{- if eq $name "*" -}}
{{- $found = dict "group" $group "plural" "*" "namespaced" true -}}
{{- else -}}
{{- $called := lower $name -}}
{{- range $row := .table -}}
{{- if and (not $found) (has $called $row.names) (or (eq $group "") (eq $group $row.group)) (or (eq $version "") (eq $version $row.version)) -}}
{{- $found = dict "group" $row.group "plural" $row.plural "namespaced" $row.namespaced -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $where := printf "config.resources[%d].resource" (int .index) -}}
{{- if not $found -}}
{{- if eq $group "" -}}
{{- fail (printf "%s: \"%s\" is not built into Kubernetes, so its group is unknown without asking a cluster; write it as plural.group, such as widgets.example.com" $where .text) -}}
{{- else if ne $name (lower $name) -}}
{{- fail (printf "%s: \"%s\" is a Kind: RBAC knows resources by their plural alone; write it as plural.group, such as widgets.example.com" $where .text) -}}
{{- end -}}
{{- $found = dict "group" $group "plural" $name "namespaced" true -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* RBAC rules for the grants "group|plural|name" of `wanted`, without what `already`, or a wider one of them, gives; sorted. */}}
{{- define "watchrelay.rules" -}}
{{- $held := merge dict .wanted .already -}}
{{- $already := .already -}}
{{- $names := dict -}}
{{- range $grant, $_ := .wanted -}}
{{- $parts := splitList "|" $grant -}}
{{- $all := printf "%s|*|" (first $parts) -}}
{{- $whole := printf "%s|%s|" (first $parts) (index $parts 1) -}}
{{- $wider := or (and (ne $all $grant) (hasKey $held $all)) (and (ne $whole $grant) (hasKey $held $whole)) -}}
{{- if not (or $wider (hasKey $already $grant)) -}}
{{- $what := printf "%s|%s" (first $parts) (index $parts 1) -}}
{{- $_ := set $names $what (append (default list (get $names $what)) (index $parts 2)) -}}
{{- end -}}
{{- end -}}
{{- $merged := dict -}}
{{- range $what, $objects := $names -}}
{{- $group := first (splitList "|" $what) -}}
{{- $like := printf "%s|%s" $group (without $objects "" | sortAlpha | join "|") -}}
{{- $_ := set $merged $like (append (default list (get $merged $like)) (last (splitList "|" $what))) -}}
{{- end -}}
{{- $sorted := dict -}}
{{- range $like, $plurals := $merged -}}
{{- $parts := splitList "|" $like -}}
{{- $resources := sortAlpha $plurals -}}
{{- $rule := dict "apiGroups" (list (first $parts)) "resources" $resources "verbs" (list "list" "watch") -}}
{{- $objects := without (rest $parts) "" -}}
{{- if $objects -}}{{- $_ := set $rule "resourceNames" $objects -}}{{- end -}}
{{- /* A blank sorts before the exclamation mark, and both before all that names may hold: as tuples sort. */ -}}
{{- $_ := set $sorted (printf "%s %s %s" (first $parts) (join "!" $resources) (join "!" $objects)) $rule -}}
{{- end -}}
{{- $rules := list -}}
{{- range keys $sorted | sortAlpha -}}
{{- $rules = append $rules (get $sorted .) -}}
{{- end -}}
{{- toJson $rules -}}
{{- end -}}
