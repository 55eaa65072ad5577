{{/* What the hub's Pods and the Pod of `helm test` share: both reach the same clusters, with the same files and rights. */}}

{{/* Fields of a Pod's spec. */}}
{{- define "hub.podSpec" -}}
{{- $wheels := .Values.providers.wheels -}}
serviceAccountName: {{ include "hub.serviceAccount" . | quote }}
automountServiceAccountToken: false
enableServiceLinks: false  # a Service called endpointslice-hub-… would set variables that the hub takes for its own
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $wheels.install }}
initContainers:
  - name: providers
    image: {{ include "hub.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [python, -c]
    args:
      - {{ .Files.Get "files/install_providers.py" | toJson }}
      - /wheels
      - /providers
      {{- toYaml $wheels.install | nindent 6 }}
    env:
      - {name: TMPDIR, value: /providers}
      - {name: HOME, value: /providers}
    {{- with .Values.securityContext }}
    securityContext: {{- toYaml . | nindent 6 }}
    {{- end }}
    resources: {{- toYaml .Values.resources | nindent 6 }}
    volumeMounts:
      - {name: wheels, mountPath: /wheels, readOnly: true}
      - {name: providers, mountPath: /providers}
{{- end }}
volumes:
  - name: registry
    projected:
      defaultMode: 0440
      sources:
        - {{ empty .Values.registry.existingSecret | ternary "configMap" "secret" }}:
            name: {{ include "hub.registryName" . | quote }}
            items: [{key: {{ .Values.registry.key | quote }}, path: clusters.yaml}]
        {{- with .Values.registry.extraSources }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  - name: account
    projected:
      defaultMode: 0440
      sources:
        - serviceAccountToken: {path: token, expirationSeconds: 3600}
        - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
        - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
  {{- if $wheels.install }}
  - name: wheels
    {{- toYaml $wheels.volume | nindent 4 }}
  - name: providers
    emptyDir: {sizeLimit: {{ $wheels.sizeLimit }}}
  {{- end }}
  {{- if and .Values.page.expose .Values.page.tlsSecret }}
  - name: tls
    secret: {secretName: {{ .Values.page.tlsSecret | quote }}, defaultMode: 0440}
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Fields of a container that runs `hub`, without its name and its arguments. */}}
{{- define "hub.container" -}}
image: {{ include "hub.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if .Values.providers.wheels.install }}
command:
  - python
  - -c
  - {{ include "hub.withWheels" . }}
{{- end }}
env:
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}  # one address per family, separated by commas
  {{- if .Values.allocations.enabled }}
  - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}  # this node's address moves last
  {{- with .Values.allocations.clusterName }}
  - {name: CLUSTER_NAME, value: {{ . | quote }}}
  {{- end }}
  {{- end }}
  {{- include "hub.environment" . | nindent 2 }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - {name: registry, mountPath: /etc/endpointslice-hub, readOnly: true}
  - {name: account, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
  {{- if .Values.providers.wheels.install }}
  - {name: providers, mountPath: /providers, readOnly: true}
  {{- end }}
  {{- if and .Values.page.expose .Values.page.tlsSecret }}
  - {name: tls, mountPath: /etc/endpointslice-hub-tls, readOnly: true}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
