"""The sandbox in pods of a Kubernetes cluster, each lease a `SandboxClaim` of agent-sandbox or a plain pod.

`sandbox.KubernetesSandbox` lends them out; `pod_agent` is the program that serves a connection inside of a pod.
"""
