{{/* What both controllers have: certificates, a budget, a network policy. */}}

{{- define "coil.certificateFlag" -}}
{{- if eq .Values.webhooks.certificates "cert-manager" }}
- --cert-dir=/etc/coil/certificate
{{- end }}
{{- if include "coil.webhookClientCA" . }}
- --webhook-client-ca=/etc/coil/client-ca/ca.crt
{{- end }}
{{- end }}

{{/* The ConfigMap with the authority of the API server's client certificates. Former charts do not have the value. */}}
{{- define "coil.webhookClientCA" -}}
{{- (.Values.webhooks.clientCA | default dict).configMap | default "" }}
{{- end }}

{{- define "coil.certificateMount" -}}
{{- $managed := eq .Values.webhooks.certificates "cert-manager" }}
{{- $clientCA := include "coil.webhookClientCA" . }}
{{- if or $managed $clientCA }}
volumeMounts:
{{- if $managed }}
- name: certificate
  mountPath: /etc/coil/certificate
  readOnly: true
{{- end }}
{{- if $clientCA }}
- name: client-ca
  mountPath: /etc/coil/client-ca
  readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{- define "coil.certificateVolume" -}}
{{- $managed := eq .root.Values.webhooks.certificates "cert-manager" }}
{{- $clientCA := include "coil.webhookClientCA" .root }}
{{- if or $managed $clientCA }}
volumes:
{{- if $managed }}
- name: certificate
  secret:
    secretName: {{ include "coil.certificateSecret" .name }}
    defaultMode: 0440
    # Not ca.crt: it is cert-manager that tells the API server whom to trust.
    items:
    - {key: tls.crt, path: tls.crt}
    - {key: tls.key, path: tls.key}
{{- end }}
{{- if $clientCA }}
- name: client-ca
  configMap:
    name: {{ $clientCA }}
    items:
    - {key: {{ .root.Values.webhooks.clientCA.key | default "ca.crt" }}, path: ca.crt}
{{- end }}
{{- end }}
{{- end }}

{{/* For more than one replica: a budget for one alone would only keep its node from being drained. */}}
{{- define "coil.budget" }}
{{- if gt (int .replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: coil-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "coil.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "coil.selector" . | nindent 6 }}
{{- end }}
{{- end }}
