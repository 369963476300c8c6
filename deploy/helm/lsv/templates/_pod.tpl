{{/* What pods with a server and pods that only lend their devices have in common. */}}

{{- define "lsv.pod.annotations" -}}
checksum/secret: {{ toJson .Values.secret | sha256sum }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lsv.pod.spec" -}}
enableServiceLinks: false
automountServiceAccountToken: false
terminationGracePeriodSeconds: {{ add .Values.drainSeconds 15 }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
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
volumes:
  - name: shared
    emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}
  - name: tmp
    emptyDir: {sizeLimit: {{ .Values.temporaryFiles }}}
  - name: cache
    {{- if .Values.cache.enabled }}
    persistentVolumeClaim:
      claimName: {{ .Values.cache.existing | default (include "lsv.name" .) }}
    {{- else }}
    emptyDir: {}
    {{- end }}
{{- end }}

{{- define "lsv.container" -}}
name: lsv
image: "{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag }}{{ end }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
env:
  {{- range $variable, $key := dict "LSV_API_KEY" "api-key" "LSV_ADMIN_API_KEY" "admin-api-key" "HF_TOKEN" "hf-token" }}
  - name: {{ $variable }}
    valueFrom:
      secretKeyRef: {name: {{ include "lsv.secret" $ }}, key: {{ $key }}, optional: true}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - {name: cache, mountPath: /cache}
  - {name: shared, mountPath: /dev/shm}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{/* The words after "lsv serve", the port and the probes. */}}
{{- define "lsv.server" -}}
args:
  - {{ .Values.model | quote }}
  - --platform
  - {{ .Values.platform }}
  - --port
  - "8000"
  - --drain-timeout
  - {{ .Values.drainSeconds | quote }}
  {{- if .Values.multiNode.enabled }}
  - --distributed-executor-backend
  - ray
  {{- end }}
  {{- range .Values.args }}
  - {{ . | quote }}
  {{- end }}
ports:
  - {name: http, containerPort: 8000}
# Loading and warming up may take long: /ready answers 503 with how far they are.
startupProbe:
  httpGet: {path: /ready, port: http}
  periodSeconds: 5
  failureThreshold: {{ div .Values.probes.startupSeconds 5 }}
readinessProbe:
  httpGet: {path: /ready, port: http}
  periodSeconds: 5
livenessProbe:
  httpGet: {path: /live, port: http}
  periodSeconds: 10
  failureThreshold: {{ div .Values.probes.deadSeconds 10 }}
{{- end }}
