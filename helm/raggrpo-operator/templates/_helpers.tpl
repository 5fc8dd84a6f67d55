{{/* Names and labels. The name label is fixed, because the NetworkPolicies of jobs select it. */}}
{{- define "raggrpo.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Label `job` of the operator's series. A Service, whose name is the default, cannot contain the slash. */}}
{{- define "raggrpo.scrapeJob" -}}
{{- printf "%s/%s" .Release.Namespace (include "raggrpo.fullname" .) -}}
{{- end -}}

{{- define "raggrpo.selectorLabels" -}}
app.kubernetes.io/name: raggrpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "raggrpo.labels" -}}
app.kubernetes.io/name: raggrpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: raggrpo
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "raggrpo.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "raggrpo.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "raggrpo.keySecret" -}}
{{- .Values.installationKey.existingSecret | default (printf "%s-key" (include "raggrpo.fullname" .)) -}}
{{- end -}}

{{/* An image by digest, else by tag; (dict "image" … "version" …). */}}
{{- define "raggrpo.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .version) -}}
{{- end -}}
{{- end -}}

{{- define "raggrpo.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "raggrpo.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Permissions of the operator in each watched namespace. A test compares them with the code. */}}
{{- define "raggrpo.rules" -}}
- apiGroups: [raggrpo.io]
  resources: [raggrpojobs]
  verbs: [get, list, watch, delete]
- apiGroups: [raggrpo.io]
  resources: [raggrpojobs/status]
  verbs: [patch]
# Created once and never updated, because queueing systems write to it.
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [get, list, watch, create, delete]
# Preflight and staging pods are created and deleted; other pods are only watched.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, delete]
# Tokens are written once and never read; even patch would return the whole Secret.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
# Created from the templates of jobs; never changed or deleted.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
# One Lease in each namespace with jobs: two operators never reconcile the same jobs.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [raggrpo-jobs]
  verbs: [get, patch]
{{- end -}}

{{/* Whether the API server serves a kind of the Prometheus operator; (dict "root" $ "kind" "PodMonitor").
     Without access to a cluster, API versions are unknown. */}}
{{- define "raggrpo.hasMonitoring" -}}
{{- $kinds := .root.Capabilities.APIVersions -}}
{{- if or ($kinds.Has (printf "monitoring.coreos.com/v1/%s" .kind)) (not ($kinds.Has "v1/Pod")) -}}true{{- end -}}
{{- end -}}
