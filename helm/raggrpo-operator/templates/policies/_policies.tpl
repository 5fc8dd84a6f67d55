{{/* Whether to render admission policies. They are cluster-scoped, so they are off in namespaced mode by default.
     Without a cluster no API versions are known; Kubernetes has the kind since 1.30. */}}
{{- define "raggrpo.hasPolicies" -}}
{{- $enabled := toString .Values.admissionPolicies.enabled -}}
{{- $kinds := .Capabilities.APIVersions -}}
{{- $known := or ($kinds.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (not ($kinds.Has "v1/Pod")) -}}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") $known (not .Values.watchNamespaces)) -}}true{{- end -}}
{{- end -}}

{{/* The operator's account as the API server names it. */}}
{{- define "raggrpo.username" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "raggrpo.serviceAccount" .) -}}
{{- end -}}

{{/* Metadata of a policy and of its binding; (dict "root" $ "part" "pods"). */}}
{{- define "raggrpo.policyMetadata" -}}
name: {{ include "raggrpo.fullname" .root }}-{{ .part }}
labels:
  {{- include "raggrpo.labels" .root | nindent 2 }}
{{- end -}}

{{/* Binding of a policy: (dict "root" $ "part" "pods"). */}}
{{- define "raggrpo.policyBinding" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "raggrpo.policyMetadata" . | nindent 2 }}
spec:
  policyName: {{ include "raggrpo.fullname" .root }}-{{ .part }}
  validationActions: [Deny]
{{- end -}}

{{/* Matches requests of the operator's account only. */}}
{{- define "raggrpo.fromOperator" -}}
- name: from-the-operator
  expression: request.userInfo.username == {{ include "raggrpo.username" . | toJson }}
{{- end -}}

{{/* CEL: prefixes of the keys of labels and annotations that the operator and its cluster set. */}}
{{- define "raggrpo.ownPrefixes" -}}
{{ concat (list "raggrpo.io/" "kueue.x-k8s.io/") .Values.admissionPolicies.addedMetadata | toJson }}
{{- end -}}

{{/* CEL: a map has only these keys; (dict "map" "object.spec" "keys" (list …)). */}}
{{- define "raggrpo.onlyKeys" -}}
dyn({{ .map }}).all(key, key in {{ toJson .keys }})
{{- end -}}

{{/* CEL: a text starts with one of these prefixes; (dict "text" "spec.image" "prefixes" (list …)). */}}
{{- define "raggrpo.startsWithOne" -}}
{{ toJson .prefixes }}.exists(prefix, {{ .text }}.startsWith(prefix))
{{- end -}}
