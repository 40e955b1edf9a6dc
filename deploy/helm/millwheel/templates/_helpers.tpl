{{- define "millwheel.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "millwheel.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "millwheel.labels" -}}
{{ include "millwheel.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The image of a role. Takes the root and the role's own tag, which may be empty. */}}
{{- define "millwheel.image" -}}
{{- $root := index . 0 -}}
{{- $image := $root.Values.image -}}
{{- if index . 1 -}}
{{ $image.repository }}:{{ index . 1 }}
{{- else if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* The domain of a role's pods. Takes the root and the role. */}}
{{- define "millwheel.domain" -}}
{{- $root := index . 0 -}}
{{ include "millwheel.fullname" $root }}-{{ index . 1 }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
{{- end -}}

{{/* The roles with their ports, as the daemons' defaults are. */}}
{{- define "millwheel.roles" -}}
master: {service: 7433, metrics: 9433}
authority: {service: 7434, metrics: 9434}
worker: {service: 7450, metrics: 9450}
{{- end -}}

{{/* The Secret of the daemons' certificates; empty: no TLS. */}}
{{- define "millwheel.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{ default (printf "%s-tls" (include "millwheel.fullname" .)) .Values.tls.secretName }}
{{- else if .Values.tls.secretName -}}
{{ .Values.tls.secretName }}
{{- else if not .Values.insecure -}}
{{ fail "Set tls.secretName or tls.certManager.enabled. In a network that you trust, set insecure=true: everybody who reaches a port can then do anything." }}
{{- end -}}
{{- end -}}

{{/* A setting's value as the environment has it. Numbers come as floats from Helm. */}}
{{- define "millwheel.text" -}}
{{- if kindIs "slice" . -}}
{{- join "," . -}}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* The ports of etcd's or Cassandra's addresses, each once, for a network policy. */}}
{{- define "millwheel.portsOf" -}}
{{- $ports := list -}}
{{- range . -}}
{{- $ports = append $ports (regexFind "[0-9]+$" . | int) -}}
{{- end -}}
{{- range $ports | uniq }}
- {protocol: TCP, port: {{ . }}}
{{- end -}}
{{- end -}}
