{{- define "nereid.name" -}}
{{- if contains "nereid" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-nereid" (.Release.Name | trunc 43 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "nereid.selector" -}}
app.kubernetes.io/name: nereid
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nereid.labels" -}}
{{ include "nereid.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "nereid.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "nereid.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- /* Whether the models are files of a volume, rather than of a bucket. */ -}}
{{- define "nereid.mounts" -}}
{{- if and (hasPrefix "/" .Values.models.repository) .Values.models.volume -}}yes{{- end -}}
{{- end -}}
