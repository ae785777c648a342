{{/* What both controllers have: certificates, a budget, a network policy. */}}

{{- define "coil.certificateFlag" -}}
{{- if eq .Values.webhooks.certificates "cert-manager" }}
- --cert-dir=/etc/coil/certificate
{{- end }}
{{- end }}

{{- define "coil.certificateMount" -}}
{{- if eq .Values.webhooks.certificates "cert-manager" }}
volumeMounts:
- name: certificate
  mountPath: /etc/coil/certificate
  readOnly: true
{{- end }}
{{- end }}

{{- define "coil.certificateVolume" -}}
{{- if eq .root.Values.webhooks.certificates "cert-manager" }}
volumes:
- name: certificate
  secret:
    secretName: {{ include "coil.certificateSecret" .name }}
    defaultMode: 0440
    # Not ca.crt: it is cert-manager that tells the API server whom to trust.
    items:
    - {key: tls.crt, path: tls.crt}
    - {key: tls.key, path: tls.key}
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
