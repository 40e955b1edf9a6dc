{{/* The environment of a daemon. Takes the root, the role and its ports. */}}
{{- define "millwheel.env" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $ports := index . 2 -}}
{{- $values := $root.Values -}}
{{- $tls := include "millwheel.tlsSecret" $root -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: MILLWHEEL_ADDRESS
  value: {{ include "millwheel.domain" (list $root "master") }}:7433
- name: MILLWHEEL_RPC_LISTEN
  value: 0.0.0.0:{{ $ports.service }}
- name: MILLWHEEL_RPC_ADVERTISE
  value: $(POD_NAME).{{ include "millwheel.domain" (list $root $role) }}
- name: MILLWHEEL_METRICS_LISTEN
  value: 0.0.0.0:{{ $ports.metrics }}
{{- if $tls }}
- name: MILLWHEEL_RPC_TLS_CA
  value: /etc/millwheel/tls/ca.crt
- name: MILLWHEEL_RPC_TLS_CERT
  value: /etc/millwheel/tls/tls.crt
- name: MILLWHEEL_RPC_TLS_KEY
  value: /etc/millwheel/tls/tls.key
{{- else }}
- name: MILLWHEEL_RPC_INSECURE
  value: "true"
{{- end }}
{{- range $section, $tls := dict "COORDINATOR" $values.coordinatorTls "STORE" $values.storeTls }}
{{- if $tls.secretName }}
- name: MILLWHEEL_{{ $section }}_TLS_CA
  value: /etc/millwheel/{{ lower $section }}-tls/ca.crt
{{- if $tls.clientCertificate }}
- name: MILLWHEEL_{{ $section }}_TLS_CERT
  value: /etc/millwheel/{{ lower $section }}-tls/tls.crt
- name: MILLWHEEL_{{ $section }}_TLS_KEY
  value: /etc/millwheel/{{ lower $section }}-tls/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq $role "master") $values.master.console }}
- name: MILLWHEEL_MASTER_UI_PORT
  value: "8433"
{{- end }}
{{- if eq $role "worker" }}
- name: MILLWHEEL_WORKER_ID
  value: $(POD_NAME)
- name: MILLWHEEL_WORKER_PACKAGES
  value: /var/cache/millwheel/packages
{{- end }}
{{- range $section, $settings := $values.settings }}
{{- range $name, $value := $settings }}
- name: MILLWHEEL_{{ upper $section }}_{{ upper $name }}
  value: {{ include "millwheel.text" $value | quote }}
{{- end }}
{{- end }}
{{- range $section, $settings := $values.secretSettings }}
{{- range $name, $from := $settings }}
- name: MILLWHEEL_{{ upper $section }}_{{ upper $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $from.name }}
      key: {{ $from.key }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A probe. Takes the path and whether the page has TLS. The kubelet shows no certificate, and probes need none. */}}
{{- define "millwheel.probe" -}}
httpGet:
  path: {{ index . 0 }}
  port: metrics
  scheme: {{ ternary "HTTPS" "HTTP" (index . 1) }}
{{- end -}}

{{- define "millwheel.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "millwheel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Mounts of the certificates. */}}
{{- define "millwheel.certificateMounts" -}}
{{- if include "millwheel.tlsSecret" . }}
- {name: tls, mountPath: /etc/millwheel/tls, readOnly: true}
{{- end }}
{{- if .Values.coordinatorTls.secretName }}
- {name: coordinator-tls, mountPath: /etc/millwheel/coordinator-tls, readOnly: true}
{{- end }}
{{- if .Values.storeTls.secretName }}
- {name: store-tls, mountPath: /etc/millwheel/store-tls, readOnly: true}
{{- end }}
{{- end -}}

{{/* Volumes of the certificates. Daemons read a file again when it has changed, so no restart follows a renewal. */}}
{{- define "millwheel.certificateVolumes" -}}
{{- $secrets := dict "tls" (include "millwheel.tlsSecret" .) -}}
{{- $_ := set $secrets "coordinator-tls" .Values.coordinatorTls.secretName -}}
{{- $_ := set $secrets "store-tls" .Values.storeTls.secretName -}}
{{- range $name, $secret := $secrets }}
{{- if $secret }}
- name: {{ $name }}
  secret:
    secretName: {{ $secret }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end -}}
