{{- define "hub.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 55 characters: a Service's name may have 63, and some of these names end in -metrics. */}}
{{- define "hub.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 55 | trimSuffix "-" }}
{{- else -}}
{{- $name := include "hub.name" . -}}
{{- if contains $name .Release.Name -}}
{{ .Release.Name | trunc 55 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 55 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Names of cluster-scoped objects: releases of the same name in two namespaces must not use the same objects. */}}
{{- define "hub.clusterName" -}}
{{ printf "%s.%s" .Release.Namespace (include "hub.fullname" .) }}
{{- end }}

{{- define "hub.selectorLabels" -}}
app.kubernetes.io/name: {{ include "hub.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* The Pod of `helm test` has another name, so that no Service and no Deployment selects it. */}}
{{- define "hub.testLabels" -}}
app.kubernetes.io/name: {{ include "hub.name" . | trunc 58 | trimSuffix "-" }}-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "hub.labels" -}}
{{ include "hub.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A label's value has at most 63 characters; a longer owner is cut, and made unique again by a hash. */}}
{{- define "hub.owner" -}}
{{- $owner := .Values.owner | default (printf "%s.%s" .Release.Namespace .Release.Name) -}}
{{- if gt (len $owner) 63 -}}
{{- $owner = printf "%s.%s" ($owner | trunc 54 | trimSuffix "." | trimSuffix "-") ($owner | sha256sum | trunc 8) -}}
{{- end -}}
{{ $owner }}
{{- end }}

{{- define "hub.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "hub.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{- define "hub.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "hub.registryName" -}}
{{ .Values.registry.existingConfigMap | default .Values.registry.existingSecret | default (printf "%s-registry" (include "hub.fullname" .)) }}
{{- end }}

{{/* A probe: a list of its path and its values. */}}
{{- define "hub.probe" -}}
httpGet: {path: {{ first . }}, port: probes}
{{- with last . }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What the security contexts allow that the chart's own values do not, as a YAML list. */}}
{{- define "hub.weakened" -}}
{{- $set := mergeOverwrite (.Values.podSecurityContext | default dict | deepCopy) (.Values.securityContext | default dict) -}}
{{- if not $set.runAsNonRoot }}
- runAsNonRoot is not true
{{- end }}
{{- if ne (toString $set.allowPrivilegeEscalation) "false" }}
- allowPrivilegeEscalation is not false
{{- end }}
{{- if $set.privileged }}
- privileged is true
{{- end }}
{{- if not $set.readOnlyRootFilesystem }}
- readOnlyRootFilesystem is not true
{{- end }}
{{- if not (has "ALL" (dig "capabilities" "drop" list $set)) }}
- capabilities.drop lacks ALL
{{- end }}
{{- if dig "capabilities" "add" list $set }}
- capabilities.add is not empty
{{- end }}
{{- if not (has (dig "seccompProfile" "type" "" $set) (list "RuntimeDefault" "Localhost")) }}
- seccompProfile.type is neither RuntimeDefault nor Localhost
{{- end }}
{{- end }}

{{/* Whether the admission policy is installed: "true", or "". The functions ip() and cidr() in expressions of new policies
need Kubernetes 1.31, one version more than the policy's own API. Without a cluster, helm knows API versions, but no kinds. */}}
{{- define "hub.admission" -}}
{{- if ne (toString .Values.admission.enabled) "auto" -}}
{{ .Values.admission.enabled | ternary "true" "" }}
{{- else if semverCompare ">=1.31.0-0" .Capabilities.KubeVersion.Version -}}
{{- $kinds := .Capabilities.APIVersions.Has "v1/Service" -}}
{{ or (not $kinds) (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") | ternary "true" "" }}
{{- end -}}
{{- end }}

{{/* Whether the policy of the cloud controller restricts changes of Nodes, also those of allocations: "true", or "". */}}
{{- define "hub.cloudNodes" -}}
{{ and .Values.cloud.enabled (or (has "nodes" .Values.cloud.parts) (has "delete-nodes" .Values.cloud.parts)) | ternary "true" "" }}
{{- end }}

{{/* The cloud of the hub's own cluster, as registry.data names it; "" if it does not. */}}
{{- define "hub.ownCloud" -}}
{{- range .Values.registry.data.clusters -}}
{{- if and (kindIs "map" .kubeconfig) (kindIs "map" .cloud) }}{{ if .kubeconfig.inCluster }}{{ .cloud.provider.name }}{{ end }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Regular expression of the provider IDs of the hub's own cluster. */}}
{{- define "hub.providerID" -}}
{{- $cloud := include "hub.ownCloud" . -}}
{{- if not (or .Values.cloud.providerID $cloud) -}}
{{- fail "\n\ncloud.enabled needs cloud.providerID, such as brightbox://srv-[0-9a-z]+, because registry.data names no cloud of the hub's own cluster" -}}
{{- end -}}
{{ .Values.cloud.providerID | default (printf "%s://.+" $cloud) }}
{{- end }}

{{/* Permissions for Services and slices: cluster-wide, or in some namespaces. */}}
{{- define "hub.targetRules" -}}
- {apiGroups: [""], resources: [services], verbs: [list, watch]}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch, create, update, delete]
{{- if .Values.hub.events }}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
{{- end }}
{{- end }}

{{/* Python code that runs `hub` with the providers of the init container. */}}
{{- define "hub.withWheels" -}}
import sys; sys.path.append("/providers/site-packages"); from hub.cli import main; main()
{{- end }}

{{/* Defaults of options of all commands, so that `kubectl exec POD -- hub status` needs none. As a YAML list. */}}
{{- define "hub.environment" -}}
- {name: ENDPOINTSLICE_HUB_REGISTRY, value: /etc/endpointslice-hub/clusters.yaml}
- {name: ENDPOINTSLICE_HUB_OWNER, value: {{ include "hub.owner" . | quote }}}
- {name: ENDPOINTSLICE_HUB_LEASE_NAMESPACE, value: {{ .Release.Namespace | quote }}}
{{- if eq .Values.rbac.scope "namespaced" }}
- {name: ENDPOINTSLICE_HUB_TARGET_NAMESPACE, value: {{ .Values.rbac.namespaces | uniq | sortAlpha | join " " | quote }}}
{{- end }}
{{- with .Values.secrets.namespace }}
- {name: ENDPOINTSLICE_HUB_SECRETS_NAMESPACE, value: {{ . | quote }}}
{{- end }}
{{- with .Values.hub.allowExec }}
- {name: ENDPOINTSLICE_HUB_ALLOW_EXEC, value: {{ join " " . | quote }}}
{{- end }}
{{- with .Values.hub.allowApiHosts }}
- {name: ENDPOINTSLICE_HUB_ALLOW_API_HOST, value: {{ join " " . | quote }}}
{{- end }}
{{- if and .Values.page.enabled (not .Values.page.expose) }}
- {name: ENDPOINTSLICE_HUB_SERVER, value: "http://127.0.0.1:{{ .Values.ports.page }}"}
{{- end }}
{{- end }}

{{/* Arguments of `hub run` that other commands do not share, as a YAML list. */}}
{{- define "hub.args" -}}
- run
- --leader-elect-lease-duration={{ .Values.leaderElection.leaseDuration }}
- --leader-elect-renew-deadline={{ .Values.leaderElection.renewDeadline }}
- --leader-elect-retry-period={{ .Values.leaderElection.retryPeriod }}
{{- if gt (int .Values.shards) 1 }}
- --shards={{ .Values.shards }}
{{- end }}
- --removal-grace={{ .Values.hub.removalGrace }}
- --health-probe-bind-address=:{{ .Values.ports.probes }}
{{- if .Values.metrics.enabled }}
- --metrics-bind-address=:{{ .Values.ports.metrics }}
{{- end }}
{{- if not .Values.page.enabled }}
- --listen=0
{{- else if .Values.page.expose }}
- --listen=:{{ .Values.ports.page }}
- --listen-authenticate
- --allowed-host={{ include "hub.fullname" . }}-page
- --allowed-host={{ include "hub.fullname" . }}-page.{{ .Release.Namespace }}
- --allowed-host={{ include "hub.fullname" . }}-page.{{ .Release.Namespace }}.svc
{{- range .Values.page.allowedHosts }}
- --allowed-host={{ . }}
{{- end }}
{{- with .Values.page.tlsSecret }}
- --tls-cert-file=/etc/endpointslice-hub-tls/tls.crt
- --tls-private-key-file=/etc/endpointslice-hub-tls/tls.key
{{- end }}
{{- else }}
- --listen=127.0.0.1:{{ .Values.ports.page }}
{{- end }}
- --events={{ .Values.hub.events }}
- --log-format={{ .Values.logFormat }}
{{- if eq .Values.logLevel "debug" }}
- -v
{{- end }}
{{- range .Values.hub.takeOver }}
- --take-over={{ . }}
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Ranges that are never published, in slices of every source; a test compares them with the hub's own. */}}
{{- define "hub.deniedAlways" -}}
- 127.0.0.0/8
- ::1/128
- 169.254.0.0/16
- fe80::/10
- 224.0.0.0/4
- ff00::/8
- 100.100.100.200/32
- 168.63.129.16/32
- 192.0.0.192/32
- fd00:ec2::254/128
- fd20:ce::254/128
- fd00:42::42/128
{{- end }}

{{/* Ranges that are never published for remote clusters. ::/96 has the unspecified and IPv4-compatible addresses. */}}
{{- define "hub.deniedRemote" -}}
- 0.0.0.0/8
- 240.0.0.0/4
- ::/96
- 2002::/16
- 64:ff9b::/96
- 64:ff9b:1::/48
- 2001::/32
{{- end }}

{{/* Checks that the schema cannot make: values that contradict each other, or do not fit this cluster. Messages say what to do. */}}
{{- define "hub.validate" -}}
{{- $given := list -}}
{{- with .Values.registry.data }}{{ $given = append $given "registry.data" }}{{ end -}}
{{- with .Values.registry.existingConfigMap }}{{ $given = append $given "registry.existingConfigMap" }}{{ end -}}
{{- with .Values.registry.existingSecret }}{{ $given = append $given "registry.existingSecret" }}{{ end -}}
{{- if gt (len $given) 1 -}}
{{- fail (printf "\n\n%s are all set, and there is one registry: keep one of them" (join " and " $given)) -}}
{{- end -}}
{{- if and (eq (toString .Values.admission.enabled) "true") (semverCompare "<1.31.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "\n\nthe admission policy needs Kubernetes 1.31, this is %s: upgrade it, or go without the policy with --set admission.enabled=auto (and --set rbac.scope=namespaced)" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (eq .Values.rbac.scope "namespaced") (not .Values.rbac.namespaces) -}}
{{- fail "\n\nrbac.scope is namespaced and rbac.namespaces is empty: list the namespaces of the registry's Services there" -}}
{{- end -}}
{{- if eq .Values.rbac.scope "namespaced" -}}
{{- range .Values.registry.data.services -}}
{{- if and (kindIs "map" .) .namespace (not (has .namespace $.Values.rbac.namespaces)) -}}
{{- fail (printf "\n\nregistry.data has the Service %s/%s, and rbac.namespaces lacks that namespace: add it there" .namespace .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int .Values.shards) 1) (lt (int .Values.shards) (int .Values.replicaCount)) -}}
{{- fail (printf "\n\nshards is %d and replicaCount %d: Pods without a shard would only wait; set shards to %d or more" (int .Values.shards) (int .Values.replicaCount) (int .Values.replicaCount)) -}}
{{- end -}}
{{- if and .Values.secrets.names (not .Values.secrets.namespace) -}}
{{- fail "\n\nsecrets.names is set and secrets.namespace is not: name the namespace these Secrets are in" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled -}}
{{- fail "\n\nmetrics.serviceMonitor and metrics.podMonitor are both enabled, and each replica would be scraped twice: keep one of them" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not (and .Values.metrics.enabled .Values.metrics.service.enabled)) -}}
{{- fail "\n\nmetrics.serviceMonitor needs metrics.enabled and metrics.service.enabled: set both to true, or use metrics.podMonitor" -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "\n\nmetrics.podMonitor needs metrics.enabled: set it to true" -}}
{{- end -}}
{{- if ne (empty .Values.providers.wheels.volume) (empty .Values.providers.wheels.install) -}}
{{- fail "\n\nproviders.wheels needs both a volume and what to install from it: set the other one too" -}}
{{- end -}}
{{- if lt (list .Values.ports.probes .Values.ports.metrics .Values.ports.page | uniq | len) 3 -}}
{{- fail "\n\nports.probes, ports.metrics and ports.page must be three ports" -}}
{{- end -}}
{{- if and .Values.page.expose (not .Values.page.enabled) -}}
{{- fail "\n\npage.expose needs page.enabled: set it to true" -}}
{{- end -}}
{{- if and .Values.registry.data.allocations (not .Values.allocations.enabled) -}}
{{- fail "\n\nregistry.data has allocations, and the hub's account may not change Nodes: set allocations.enabled to true" -}}
{{- end -}}
{{- if and (include "hub.ownCloud" .) (not .Values.cloud.enabled) -}}
{{- fail "\n\nregistry.data has a cluster with cloud and kubeconfig.inCluster, and the hub's account may not be its cloud controller: set cloud.enabled to true" -}}
{{- end -}}
{{- $secrets := include "hub.namedSecrets" . | fromYamlArray -}}
{{- if and $secrets (not .Values.secrets.namespace) -}}
{{- fail (printf "\n\nregistry.data names the Secrets %s, and the hub may read none: set secrets.namespace to the namespace they are in" (join ", " $secrets)) -}}
{{- end -}}
{{- if .Values.secrets.names -}}
{{- range $secrets -}}
{{- if not (has . $.Values.secrets.names) -}}
{{- fail (printf "\n\nregistry.data names the Secret %s, which secrets.names lacks: add it there" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "hub.validateRegistry" . -}}
{{- end }}

{{/* Checks that an existing registry exists and has the key, if helm can read the cluster. */}}
{{- define "hub.validateRegistry" -}}
{{- $name := .Values.registry.existingConfigMap | default .Values.registry.existingSecret -}}
{{- $kind := empty .Values.registry.existingConfigMap | ternary "Secret" "ConfigMap" -}}
{{- if and $name .Values.lookup (lookup "v1" "Namespace" "" "default") -}}
{{- $found := lookup "v1" $kind .Release.Namespace $name -}}
{{- if not $found -}}
{{- fail (printf "\n\nthere is no %s %s in namespace %s with the registry: create it first (kubectl -n %s create %s %s --from-file=%s=clusters.yaml), or set lookup=false to create it later" $kind $name .Release.Namespace .Release.Namespace (eq $kind "Secret" | ternary "secret generic" "configmap") $name .Values.registry.key) -}}
{{- end -}}
{{- if not (hasKey ($found.data | default dict) .Values.registry.key) -}}
{{- fail (printf "\n\n%s %s has no key %s: it has %s; set registry.key" $kind $name .Values.registry.key (keys ($found.data | default dict) | sortAlpha | join ", " | default "none")) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Secrets that registry.data names: kubeconfigs, and {secret: …, key: …} anywhere in a provider's configuration. */}}
{{- define "hub.namedSecrets" -}}
{{- $found := list -}}
{{- $providers := list -}}
{{- range .Values.registry.data.clusters -}}
{{- if kindIs "map" .kubeconfig }}{{ with .kubeconfig.secret }}{{ $found = append $found . }}{{ end }}{{ end -}}
{{- $providers = concat $providers (list .provider .cloud) -}}
{{- end -}}
{{- range .Values.registry.data.services -}}
{{- range .sources }}{{ $providers = append $providers .provider }}{{ end -}}
{{- end -}}
{{- $providers = append $providers .Values.registry.data.allocations -}}
{{- range regexFindAll "{\"key\":\"[^\"]*\",\"secret\":\"[^\"]+\"}" (toJson $providers) -1 -}}
{{- $found = append $found (fromJson .).secret -}}
{{- end -}}
{{- $found | uniq | sortAlpha | toYaml -}}
{{- end }}

{{/* Permissions in a namespace of workloads that allocations refer to, as a YAML list. */}}
{{- define "hub.workloadRules" -}}
- {apiGroups: [apps], resources: [deployments, statefulsets, daemonsets, replicasets], verbs: [get]}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
{{- if ne .Values.allocations.eviction "None" }}
- {apiGroups: [""], resources: [pods/eviction], verbs: [create]}
{{- end }}
{{- if eq .Values.allocations.eviction "ForceDelete" }}
- {apiGroups: [""], resources: [pods], verbs: [delete]}
{{- end }}
{{- end }}
