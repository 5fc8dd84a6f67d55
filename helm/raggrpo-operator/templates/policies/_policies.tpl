{{/* Whether to render admission policies. They are cluster-scoped, so they are off by default with watchNamespaces.
     Without access to a cluster, API versions are unknown; Kubernetes 1.30 and newer serve the kind. */}}
{{- define "raggrpo.hasPolicies" -}}
{{- $enabled := toString .Values.admissionPolicies.enabled -}}
{{- $kinds := .Capabilities.APIVersions -}}
{{- $known := or ($kinds.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (not ($kinds.Has "v1/Pod")) -}}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") $known (not .Values.watchNamespaces)) -}}true{{- end -}}
{{- end -}}

{{/* User name of the operator's service account in API requests. */}}
{{- define "raggrpo.username" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "raggrpo.serviceAccount" .) -}}
{{- end -}}

{{/* Metadata of a policy and of its binding; (dict "root" $ "policy" "pods"). */}}
{{- define "raggrpo.policyMetadata" -}}
name: {{ include "raggrpo.fullname" .root }}-{{ .policy }}
labels:
  {{- include "raggrpo.labels" .root | nindent 2 }}
{{- end -}}

{{/* Binding of a policy: (dict "root" $ "policy" "pods"). */}}
{{- define "raggrpo.policyBinding" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "raggrpo.policyMetadata" . | nindent 2 }}
spec:
  policyName: {{ include "raggrpo.fullname" .root }}-{{ .policy }}
  validationActions: [Deny]
{{- end -}}

{{/* Matches requests of the operator's account only. */}}
{{- define "raggrpo.fromOperator" -}}
- name: from-operator
  expression: request.userInfo.username == {{ include "raggrpo.username" . | toJson }}
{{- end -}}

{{/* CEL: prefixes of label and annotation keys that the operator and the cluster's webhooks set. */}}
{{- define "raggrpo.ownPrefixes" -}}
{{ concat (list "raggrpo.io/" "kueue.x-k8s.io/") .Values.admissionPolicies.addedMetadata | toJson }}
{{- end -}}

{{/* CEL: whether a map has only these keys; (dict "map" "object.spec" "keys" (list …)). */}}
{{- define "raggrpo.onlyKeys" -}}
dyn({{ .map }}).all(key, key in {{ toJson .keys }})
{{- end -}}

{{/* CEL: whether a text starts with one of these prefixes; (dict "text" "spec.image" "prefixes" (list …)). */}}
{{- define "raggrpo.startsWithOne" -}}
{{ toJson .prefixes }}.exists(prefix, {{ .text }}.startsWith(prefix))
{{- end -}}
