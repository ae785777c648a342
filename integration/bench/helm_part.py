"""How long after `helm install` the first pod has an address: on two real nodes that have the image, and nothing else.

The clock begins with the custom resource definitions, then the chart, the pool as soon as a webhook admits it, a pod
that the scheduler places; it ends when the API server shows that pod's address. Each run has a cluster of its own.
"""

import json
import time
from collections.abc import Collection, Iterator
from typing import Any

from integration.bench.figure import Figure, Reading
from integration.bench.part import Part
from integration.bench.sample import median
from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import ControlPlane
from integration.demo.workload import pool_document, server_container
from integration.helm.release import Release, import_image
from integration.image.build import build_image
from integration.patience import wait_until

FIRST_POD = Figure("helm.install_to_first_pod_s", "s")
_RUNS = 3
_POD = "first"
_PAUSE = 0.1
_PATIENCE_SECONDS = 180.0
_WARNINGS = 5


def measure_install(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """A cluster for each run, one after the other."""
    archive = build_image()
    seconds = []
    for _ in range(_RUNS):
        with Cluster.up(nodes=2) as cluster:
            import_image(cluster, archive)
            seconds.append(_install(cluster))
    runs = ", ".join(f"{each:.1f}" for each in seconds)
    yield Reading(figure=FIRST_POD, value=median(seconds), runs=_RUNS, note=f"kinds, chart, pool, pod; runs: {runs}")


def _install(cluster: Cluster) -> float:
    plane = cluster.plane
    wait_until(lambda: plane.kubectl("get", "serviceaccounts"), what="pods are taken")
    release = Release(plane, {})
    began = time.monotonic()
    release.install()
    pool = pool_document("default", {"subnets": [{"ipv4": "10.100.0.0/16", "ipv6": "fd10:100::/112"}]})
    release.apply(pool, _pod())
    try:
        wait_until(lambda: _addresses(cluster), what="the pod has an address", timeout=_PATIENCE_SECONDS, pause=_PAUSE)
    except AssertionError as error:
        raise RuntimeError(f"{error}; {_describe_trouble(plane)}") from error
    return time.monotonic() - began


def _describe_trouble(plane: ControlPlane) -> str:
    """What the cluster says of it: pods that are not ready, and its last warnings."""
    pods = json.loads(plane.kubectl("get", "pods", "--all-namespaces", "--output=json"))["items"]
    unready = [pod["metadata"]["name"] for pod in pods if not _is_ready(pod)]
    newest = ("--sort-by=.metadata.creationTimestamp", "--field-selector=type=Warning", "--output=json")
    warnings = json.loads(plane.kubectl("get", "events", "--all-namespaces", *newest))["items"][-_WARNINGS:]
    told = [f"{event['involvedObject']['name']}: {event['reason']}: {event.get('message', '')}" for event in warnings]
    return "; ".join([f"not ready: {', '.join(unready) or 'no pod'}", *told])


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _pod() -> dict[str, object]:
    spec = {"containers": [server_container()], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _POD}, "spec": spec}


def _addresses(cluster: Cluster) -> list[str]:
    pod = json.loads(cluster.plane.kubectl("get", "pod", _POD, "--output=json"))
    return [entry["ip"] for entry in pod["status"].get("podIPs", ())]


PART = Part("helm", (FIRST_POD,), measure_install, fetch=build_image)
