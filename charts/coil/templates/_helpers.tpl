{{/* Names are fixed, not made of the release's: a cluster has one Coil, and the programs know each other by name. */}}

{{- define "coil.labels" -}}
{{ include "coil.selector" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "coil.selector" -}}
app.kubernetes.io/name: coil
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "coil.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "coil.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* Where metrics listen: on the node's localhost unless told otherwise. */}}
{{- define "coil.metricsAddress" -}}
{{- if .root.Values.metrics.enabled }}{{ .root.Values.metrics.listenAddress }}{{ else }}127.0.0.1{{ end }}:{{ .port }}
{{- end }}

{{- define "coil.logFlags" -}}
- --log-level={{ .Values.logs.level }}
- --log-format={{ .Values.logs.format }}
{{- end }}

{{/* Flags of the release's own, last: of two of one name the last counts. */}}
{{- define "coil.extraArgs" -}}
{{- range . }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* What a namespace may have of EIP gateways. Former charts have no such values (--reuse-values). */}}
{{- define "coil.namespaceLimits" -}}
{{- with . }}
- --policies-per-namespace={{ .policiesPerNamespace | int }}
- --networks-per-namespace={{ .networksPerNamespace | int }}
{{- end }}
{{- end }}

{{/* Probes of a program. On the node's network it is asked on localhost, where nobody else can ask it. */}}
{{- define "coil.probes" -}}
livenessProbe:
  httpGet:
    path: /healthz
    port: {{ .port }}
    {{- if .hostNetwork }}
    host: 127.0.0.1
    {{- end }}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: /readyz
    port: {{ .port }}
    {{- if .hostNetwork }}
    host: 127.0.0.1
    {{- end }}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end }}

{{/* A container that needs no privilege at all. */}}
{{- define "coil.unprivileged" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
privileged: false
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/*
One that works on its node, with the values of its program as `of`, and with the capabilities in `add`. Kubernetes gives a
container no ambient capabilities, so they count for user 0 only.
*/}}
{{- define "coil.nodeSecurity" -}}
runAsNonRoot: false
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
privileged: false
capabilities:
  drop: [ALL]
  {{- with .add }}
  add:
  {{- toYaml . | nindent 2 }}
  {{- end }}
seccompProfile:
  type: RuntimeDefault
{{- /* Former charts have no such value (--reuse-values). */}}
{{- with .of.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Two replicas never share a node: on the node's network they could not, as they would want the same ports. */}}
{{- define "coil.spread" -}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "coil.selector" . | nindent 10 }}
{{- end }}

{{/*
The network configuration list that the installer writes. Runtimes that know `cniVersions` (CNI 1.1.0) take the newest
that they know; with 1.1.0 they call STATUS (containerd 2, CRI-O) and GC (CRI-O). Other plugins in the list may be older than that.
*/}}
{{- define "coil.netconf" -}}
{{- $own := dict "type" (include "coil.pluginName" .) "socket" (printf "%s/coild.sock" .Values.coild.runDirectory) -}}
{{- /* What the former chart's values lack, --reuse-values leaves out. */ -}}
{{- $hostPorts := and .Values.ipam.enabled (ne (toString .Values.cni.hostPorts) "false") -}}
{{- range .Values.cni.after -}}
{{- if eq .type "portmap" -}}
{{- $hostPorts = false -}}
{{- end -}}
{{- end -}}
{{- if $hostPorts -}}
{{- $_ := set $own "capabilities" (dict "portMappings" true) -}}
{{- end -}}
{{- $plugins := concat .Values.cni.before (list $own) .Values.cni.after -}}
{{- if hasSuffix ".conf" .Values.cni.confName -}}
{{- if ne (len $plugins) 1 -}}
{{- fail "cni.before and cni.after need a list: a cni.confName that ends in .conflist" -}}
{{- end -}}
{{- toJson (merge (dict "name" .Values.cni.networkName) $own) -}}
{{- else -}}
{{- $version := .Values.cni.version | default "1.0.0" -}}
{{- $list := dict "cniVersion" $version "name" .Values.cni.networkName "plugins" $plugins -}}
{{- if and (eq (len $plugins) 1) (eq $version "1.0.0") -}}
{{- $_ := set $list "cniVersions" (list "1.0.0" "1.1.0") -}}
{{- end -}}
{{- toJson $list -}}
{{- end -}}
{{- end }}

{{/* Former charts have no such value (--reuse-values). */}}
{{- define "coil.pluginName" -}}
{{- .Values.cni.pluginName | default "coil" -}}
{{- end }}

{{/* Whether a node's daemon runs: it serves IPAM, egress NAT, or both. */}}
{{- define "coil.hasCoild" -}}
{{- if or .Values.ipam.enabled .Values.egress.enabled }}true{{ end }}
{{- end }}

{{/* Whether coil-egress-controller runs: for Egresses, for floating addresses, or for both. */}}
{{- define "coil.hasEgressController" -}}
{{- if or .Values.egress.enabled .Values.eip.enabled }}true{{ end }}
{{- end }}

{{/* Whether nodes have pods' addresses from AWS. Former charts have neither of the values (--reuse-values). */}}
{{- define "coil.awsEni" -}}
{{- if and .Values.ipam.enabled (eq (.Values.ipam.addressSource | default "pools") "aws-eni") }}true{{ end }}
{{- end }}

{{/* Whether policies can keep the programs on a node to its objects: RBAC cannot. Former charts have no such value. */}}
{{- define "coil.nodeIsolation" -}}
{{- if and (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) (ne (toString .Values.nodeIsolation) "false") }}true{{ end }}
{{- end }}

{{/* Whether one keeps each coild to its own Node's status. */}}
{{- define "coil.ownNodePolicy" -}}
{{- if and (include "coil.nodeIsolation" .) (ne (toString (.Values.aws).nodeStatusPolicy) "false") }}true{{ end }}
{{- end }}

{{/* Whether coild says in its Node's conditions what is wrong with the pod network. Without the policy only where it has
to, with aws-eni. Former charts have no such value. */}}
{{- define "coil.nodeConditions" -}}
{{- $wanted := and .Values.ipam.enabled (not (include "coil.neutron" .)) (ne (toString .Values.coild.nodeConditions) "false") }}
{{- if or (include "coil.awsEni" .) (and $wanted (include "coil.ownNodePolicy" .)) }}true{{ end }}
{{- end }}

{{/* Whether coild writes the status of its Node. */}}
{{- define "coil.nodeStatus" -}}
{{- if or (include "coil.nodeConditions" .) .Values.coild.setNetworkUnavailable }}true{{ end }}
{{- end }}

{{/* Whether nodes plug pods into ports of Neutron's networks. Former charts have none of the values. */}}
{{- define "coil.neutron" -}}
{{- if and .Values.ipam.enabled (eq (.Values.ipam.addressSource | default "pools") "neutron") }}true{{ end }}
{{- end }}

{{- define "coil.accountAnnotations" -}}
{{- with (.serviceAccount | default dict).annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where both programs find AWS, and by which name they know their own. */}}
{{- define "coil.awsFlags" -}}
- --address-source=aws-eni
- --cluster-name={{ .Values.aws.clusterName }}
{{- with .Values.aws.ec2Endpoint }}
- --ec2-endpoint={{ . }}
{{- end }}
{{- with .Values.aws.metadataEndpoint }}
- --metadata-endpoint={{ . }}
{{- end }}
{{- end }}

{{/* The settings of a node that amazon-vpc-cni-k8s has, by its names. */}}
{{- define "coil.awsEnvironment" -}}
{{- $v := .Values.aws }}
{{- range $name, $value := $v.targets }}
{{- if not (kindIs "invalid" $value) }}
- {name: {{ $name }}, value: {{ $value | int64 | quote }}}
{{- end }}
{{- end }}
- {name: ENABLE_PREFIX_DELEGATION, value: {{ $v.prefixDelegation | quote }}}
- {name: ENABLE_IPv6, value: {{ $v.ipv6 | quote }}}
- {name: AWS_VPC_K8S_CNI_EXTERNALSNAT, value: {{ $v.externalSNAT | quote }}}
- {name: AWS_VPC_K8S_CNI_RANDOMIZESNAT, value: {{ $v.randomizeSNAT | quote }}}
{{- with $v.excludeSNATCIDRs }}
- {name: AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS, value: {{ join "," . | quote }}}
{{- end }}
{{- end }}

{{- define "coil.certificateSecret" -}}
{{ . }}-tls
{{- end }}

{{/* Where kubectl and helm put the CA of cert-manager. */}}
{{- define "coil.webhookAnnotations" -}}
{{- if eq .root.Values.webhooks.certificates "cert-manager" }}
annotations:
  cert-manager.io/inject-ca-from: {{ .root.Release.Namespace }}/{{ .name }}
{{- end }}
{{- end }}

{{/* Whether coil-raven runs. Former charts do not have the value (--reuse-values). */}}
{{- define "coil.withRaven" -}}
{{- if (.Values.raven | default dict).enabled }}true{{ end }}
{{- end }}

{{/* Which cloud, and what of it is the cluster's: the same for coil-raven and for its cleanup. */}}
{{- define "coil.ravenFlags" -}}
- --lease-namespace={{ .Release.Namespace }}
- --clouds-file=/etc/openstack/clouds.yaml
- --cloud={{ $.Values.raven.cloud }}
- --supernets={{ join "," $.Values.raven.supernets }}
{{- with $.Values.raven.clusterName }}
- --cluster-name={{ . }}
{{- end }}
{{- with $.Values.raven.router }}
- --router={{ . }}
{{- end }}
{{- with $.Values.raven.publicNetwork }}
- --public-network={{ . }}
{{- end }}
{{- with $.Values.raven.project }}
- --project={{ . }}
{{- end }}
- --isolate-namespaces={{ $.Values.raven.isolateNamespaces }}
{{- /* What the former chart's values lack, --reuse-values leaves out. */}}
- --port-pool-size={{ $.Values.raven.portPoolSize | default 0 }}
- --port-cooling={{ $.Values.raven.portCooling | default "30s" }}
{{- with $.Values.raven.services.cidrs }}
- --service-cidrs={{ join "," . }}
- --provider={{ $.Values.raven.services.provider }}
- --load-balancer-class={{ $.Values.raven.services.loadBalancerClass }}
{{- end }}
{{- end }}

{{- define "coil.ravenClouds" -}}
# Not a subPath: one of those keeps the old credentials when the Secret changes.
- name: clouds
  secret:
    secretName: {{ .Values.raven.cloudsSecret }}
    defaultMode: 0440
    items:
    - {key: clouds.yaml, path: clouds.yaml}
{{- end }}

{{/*
Entries of a program's environment: where it finds the API server, unless by the Service `kubernetes`. Former charts have
no such values (--reuse-values).
*/}}
{{- define "coil.apiServer" -}}
{{- $server := .Values.apiServer | default dict -}}
{{- with $server.host -}}
- {name: KUBERNETES_SERVICE_HOST, value: {{ . | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ $server.port | default 6443 | quote }}}
{{- end }}
{{- end }}
