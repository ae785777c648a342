"""The pods that the informer is measured on, as the API server would write them. Pure.

A pod is rendered once into the bytes before and after its resource version, so that serving a list or a long watch
only joins bytes. About 3.4 KB each, most of it managed fields, as in a real cluster.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

_MARK = "resource-version-goes-here"
_KIND = b'"kind":"Pod","apiVersion":"v1",'


@dataclass(frozen=True, slots=True)
class PodText:
    """A pod's JSON around its resource version."""

    head: bytes
    tail: bytes

    def at(self, version: int) -> bytes:
        """The object as it stands in a list: there the API server leaves kind and apiVersion out."""
        return b"".join((self.head, b"%d" % version, self.tail))

    def event(self, kind: bytes, version: int) -> bytes:
        """One line of a watch. `kind` is ADDED, MODIFIED or DELETED."""
        opening = b'{"type":"%b","object":{%b' % (kind, _KIND)
        return b"".join((opening, self.head[1:], b"%d" % version, self.tail, b"}\n"))


def render_pod(index: int) -> PodText:
    """The pod with this number; the same number always gives the same pod."""
    text = json.dumps(_pod(index), separators=(",", ":")).encode()
    head, tail = text.split(_MARK.encode())
    return PodText(head, tail)


def render_page(pods: Sequence[PodText], *, version: int, limit: int, token: str) -> bytes:
    """One page of the list at `version`. `limit` 0 means all that is left; `token` is "" or from a page before.

    Raises ValueError for a token that no page gave out.
    """
    first = _offset(token) if token else 0
    last = min(first + limit, len(pods)) if limit else len(pods)
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if last < len(pods):
        metadata |= {"continue": _token(last), "remainingItemCount": len(pods) - last}
    opening = b'{"kind":"PodList","apiVersion":"v1","metadata":%b,"items":[' % json.dumps(metadata).encode()
    items = b",".join(pods[number].at(version - number) for number in range(first, last))
    return b"".join((opening, items, b"]}\n"))


def render_end_of_list(version: int) -> bytes:
    """The bookmark after a streamed list."""
    metadata = {"resourceVersion": str(version), "annotations": {"k8s.io/initial-events-end": "true"}}
    document = {"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def render_event(pods: Sequence[PodText], number: int, *, since: int) -> bytes:
    """The watch's event with this number (from 0) after the list at version `since`.

    In turn over the pods: eight are modified, then one is deleted and added again.
    """
    step = number % 10
    pod = pods[(number - 1 if step == 9 else number) % len(pods)]
    kind = b"DELETED" if step == 8 else b"ADDED" if step == 9 else b"MODIFIED"
    return pod.event(kind, since + 1 + number)


def _token(offset: int) -> str:
    return urlsafe_b64encode(json.dumps({"v": "meta.k8s.io/v1", "start": offset}).encode()).decode()


def _offset(token: str) -> int:
    return int(json.loads(urlsafe_b64decode(token))["start"])


def _pod(index: int) -> dict[str, Any]:
    digest = sha1(b"pod %d" % index, usedforsecurity=False).hexdigest()
    uid = f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}"
    application = f"service-{index // 25:03d}"
    image = f"images.example.com/team-{index % 40:02d}/{application}"
    container = "containerd://" + sha1(digest.encode(), usedforsecurity=False).hexdigest() + digest[:24]
    node = f"worker-{index % 100:03d}"
    address = f"10.{64 + index // 65536}.{index // 256 % 256}.{index % 256}"
    started = f"2024-03-0{1 + index % 9}T10:{index % 60:02d}:17Z"
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1}
    return {
        "metadata": {
            "name": f"{application}-{digest[:9]}-{digest[9:14]}",
            "generateName": f"{application}-{digest[:9]}-",
            "namespace": f"team-{index % 40:02d}",
            "uid": uid,
            "resourceVersion": _MARK,
            "creationTimestamp": started,
            "labels": {"app.kubernetes.io/name": application, "pod-template-hash": digest[:9], "tier": "backend"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{application}-{digest[:9]}",
                    "uid": uid[::-1],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": _managed_fields(application, uid[::-1], started),
        },
        "spec": {
            "volumes": [
                {
                    "name": f"kube-api-access-{digest[:5]}",
                    "projected": {"sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]},
                }
            ],
            "containers": [
                {
                    "name": application,
                    "image": f"{image}:v{index % 17}",
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                    "env": [{"name": "LOG_LEVEL", "value": "info"}, {"name": "SHARD", "value": str(index % 8)}],
                    "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "256Mi"}},
                    "livenessProbe": probe,
                    "terminationMessagePath": "/dev/termination-log",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": application,
            "nodeName": node,
            "schedulerName": "default-scheduler",
            "enableServiceLinks": True,
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": started}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "hostIP": f"172.16.{index % 100 // 50}.{index % 50 + 10}",
            "podIP": address,
            "podIPs": [{"ip": address}, {"ip": f"fd01:5e::{index:x}"}],
            "startTime": started,
            "containerStatuses": [
                {
                    "name": application,
                    "state": {"running": {"startedAt": started}},
                    "lastState": {},
                    "ready": True,
                    "restartCount": index % 3,
                    "image": f"{image}:v{index % 17}",
                    "imageID": f"{image}@sha256:{digest}{digest[:24]}",
                    "containerID": container,
                    "started": True,
                }
            ],
            "qosClass": "Burstable",
        },
    }


def _managed_fields(application: str, owner: str, time: str) -> list[dict[str, Any]]:
    nothing: dict[str, Any] = {}
    request = {".": nothing, "f:path": nothing, "f:port": nothing}
    probe = {".": nothing, "f:httpGet": request, "f:timeoutSeconds": nothing}
    template = {
        "f:metadata": {
            "f:generateName": nothing,
            "f:labels": {".": nothing, "f:app.kubernetes.io/name": nothing, "f:pod-template-hash": nothing},
            "f:ownerReferences": {".": nothing, f'k:{{"uid":"{owner}"}}': nothing},
        },
        "f:spec": {
            "f:containers": {
                f'k:{{"name":"{application}"}}': {
                    ".": nothing,
                    "f:image": nothing,
                    "f:livenessProbe": probe,
                    "f:resources": {".": nothing, "f:limits": nothing, "f:requests": nothing},
                }
            },
            "f:restartPolicy": nothing,
        },
    }
    condition = {".": nothing, "f:lastTransitionTime": nothing, "f:status": nothing}
    status = {
        "f:status": {
            "f:conditions": {f'k:{{"type":"{kind}"}}': condition for kind in ("Initialized", "Ready")},
            "f:phase": nothing,
            "f:podIPs": nothing,
        }
    }
    entry = {"operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1"}
    return [
        {"manager": "kube-controller-manager", **entry, "fieldsV1": template},
        {"manager": "kubelet", **entry, "fieldsV1": status},
    ]
