{{/* What the pods share. Each takes the context of the chart. */}}

{{- define "pulsebridge.name" -}}
{{- if contains "pulsebridge" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-pulsebridge{{ end }}
{{- end }}

{{/* The labels of a component: list CONTEXT COMPONENT. */}}
{{- define "pulsebridge.labels" -}}
{{- $context := index . 0 -}}
{app.kubernetes.io/name: pulsebridge, app.kubernetes.io/instance: {{ $context.Release.Name }}, app.kubernetes.io/component: {{ index . 1 }}}
{{- end }}

{{- define "pulsebridge.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The annotations of a pod, with its key. */}}
{{- define "pulsebridge.annotations" -}}
{{- $found := dict }}
{{- if .Values.restartOnChange }}{{ $_ := set $found "pulsebridge/settings" (toJson .Values.settings | sha256sum) }}{{ end }}
{{- $found = merge $found .Values.podAnnotations }}
{{- if $found -}}
annotations:
  {{- toYaml $found | nindent 2 }}
{{- end }}
{{- end }}

{{/* The first fields of a pod. */}}
{{- define "pulsebridge.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.podSpec }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pulsebridge.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: ["ALL"]}
{{- end }}

{{- define "pulsebridge.mounts" -}}
- {name: settings, mountPath: /etc/pulsebridge/pulsebridge.yaml, subPath: pulsebridge.yaml, readOnly: true}
- {name: secrets, mountPath: /etc/pulsebridge/secrets, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "pulsebridge.volumes" -}}
- name: settings
  configMap: {name: {{ include "pulsebridge.name" . }}}
- name: secrets
  secret: {secretName: {{ .Values.secret }}, defaultMode: 0440}
{{- end }}

{{/* The claim of the tables. */}}
{{- define "pulsebridge.claim" -}}
{{ .Values.lakehouse.existingClaim | default (printf "%s-lakehouse" (include "pulsebridge.name" .)) }}
{{- end }}

{{/* The probe of a liveness and its readiness. No client calls a pod's readiness. */}}
{{- define "pulsebridge.probes" -}}
livenessProbe:  # fails only when the process cannot recover by itself
  httpGet: {path: /healthz, port: metrics}
  initialDelaySeconds: 20
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:  # no client calls it; by /readyz a pod that stands by is not ready, and would block a rollout
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
