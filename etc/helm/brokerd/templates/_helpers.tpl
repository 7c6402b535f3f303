{{- define "brokerd.name" -}}
{{- if contains "brokerd" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-brokerd" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "brokerd.selector" -}}
app.kubernetes.io/name: brokerd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: broker
{{- end }}

{{- define "brokerd.labels" -}}
app.kubernetes.io/name: brokerd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "brokerd.secret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-accounts" (include "brokerd.name" .)) }}
{{- end }}

{{- define "brokerd.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "brokerd.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "brokerd.mounts" -}}
- {name: data, mountPath: /var/lib/brokerd}
- {name: config, mountPath: /etc/brokerd, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if eq .Values.auth.mode "on" }}
- {name: accounts, mountPath: /run/brokerd-accounts, readOnly: true}
{{- end }}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /run/brokerd-tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "brokerd.volumes" -}}
- name: config
  configMap: {name: {{ include "brokerd.name" . }}}
- name: tmp
  emptyDir: {}
{{- if eq .Values.auth.mode "on" }}
- name: accounts
  secret: {secretName: {{ include "brokerd.secret" . }}, defaultMode: 0440}
{{- end }}
{{- if .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440}
{{- end }}
{{- end }}
