"""The stage inside: two nodes, the host outside the cluster, and what tests do with Egresses, Services and pods."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.egress.api import Api, ApiError, Document
from integration.egress.conversation import sees
from integration.egress.description import Description
from integration.egress.external_host import ADDRESSES, NETWORKS, ExternalHost
from integration.egress.kubelet import Kubelet
from integration.egress.outside import CLIENT_NAMESPACE, EGRESS_NAMESPACE
from integration.egress.pod import RunningPod
from integration.egress.station import PATIENCE, PAUSE, Station
from integration.patience import wait_until
from integration.vm.passage import ensure_passage

EGRESSES = f"/apis/coil.cybozu.com/v2/namespaces/{EGRESS_NAMESPACE}/egresses"
ANNOTATION = f"egress.coil.cybozu.com/{EGRESS_NAMESPACE}"
_LOG_LINES = 40
EVERYTHING = tuple(NETWORKS.values())
"""In a cluster of both families."""
NO_LABELS: Mapping[str, str] = MappingProxyType({})


class World:
    """Make it with `up`. Egresses and pods are a test's own."""

    def __init__(
        self,
        api: Api,
        *,
        description: Description,
        workspace: Workspace,
        network: Network,
        stations: list[Station],
        external: ExternalHost,
        kubelet: Kubelet,
    ) -> None:
        self.api = api
        self.description = description
        self.stations = stations
        self.external = external
        self.kubelet = kubelet
        self._workspace = workspace
        self._network = network

    @classmethod
    @contextmanager
    def up(cls) -> Iterator["World"]:
        """Everything but pods. Ends with the context."""
        description = Description.read()
        with Workspace.create() as workspace, closing(Api(description)) as api:
            ensure_passage(description.address)
            network = Network.create(workspace, description.families)
            stations = [Station(workspace, network, description, api, index=index) for index in range(2)]
            for station in stations:
                station.wait_ready()
            external = ExternalHost(workspace, network)
            external.be_known(stations)
            world = cls(
                api,
                description=description,
                workspace=workspace,
                network=network,
                stations=stations,
                external=external,
                kubelet=Kubelet(workspace, description, api, stations),
            )
            try:
                yield world
            finally:
                world.kubelet.end_all()
                for station in stations:
                    world.remove(station)

    def remove(self, station: Station) -> None:
        """The node is gone from the cluster, and from the network."""
        station.wired.destroy_sandboxes()
        self._network.detach(station.name)
        self.api.delete(f"/api/v1/nodes/{station.name}")

    @contextmanager
    def another_station(self, name: str, *flags: str) -> Iterator[Station]:
        """One more node, the last of `stations`, with these flags of coild; gone with the context, and its pods before.

        Only pods that name it run there. Routes to it and from it beyond the cluster are the caller's part.
        """
        index = len(self.stations)
        station = Station(
            self._workspace, self._network, self.description, self.api, index=index, name=name, flags=flags
        )
        try:
            station.wait_ready()
            self.stations.append(station)
            self.kubelet.join(station)
            yield station
        finally:
            self.kubelet.leave(station)
            self.stations.remove(station)
            station.stop()
            self.remove(station)

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and last lines of what every program has logged."""
        for path in sorted((self._workspace.folder / "logs").glob("*.log")):
            yield path.stem, "\n".join(path.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    @contextmanager
    def egress(self, *, name: str = "", **spec: Any) -> Iterator["EgressUnderTest"]:
        """An Egress with its routers, ready, and its Service known to kube-proxy; deleted at the end of the block."""
        name = name or f"nat-{secrets.token_hex(3)}"
        everything = [NETWORKS[version] for version in self.description.families.value]
        spec = {"destinations": everything, "replicas": 1, **spec}
        egress = EgressUnderTest(self, name, spec=spec)
        try:
            egress.create()
            yield egress
        finally:
            egress.delete()

    @contextmanager
    def client(
        self,
        *egresses: str,
        station: int = 0,
        namespace: str = CLIENT_NAMESPACE,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Iterator[RunningPod]:
        """A pod with the annotation for those Egresses, or with none; deleted at the end of the block."""
        with self.pod_object(*egresses, station=station, namespace=namespace, labels=labels) as uid:
            yield self.wait_running(uid)

    def wait_running(self, uid: str) -> RunningPod:
        """The pod, once its ADD has succeeded."""
        self.kubelet.wait_until(lambda: self.pod(uid), what=f"pod {uid} runs")
        pod = self.pod(uid)
        assert pod is not None
        self.external.learn(self.stations)
        return pod

    @contextmanager
    def pod_object(
        self,
        *egresses: str,
        station: int = 0,
        namespace: str = CLIENT_NAMESPACE,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Iterator[str]:
        """The UID of a pod that the kubelet may start or not; deleted at the end of the block."""
        name = f"client-{secrets.token_hex(3)}"
        wanted = {ANNOTATION: ",".join(egresses)} if egresses else {}
        document = {
            "metadata": {"name": name, "annotations": wanted, "labels": dict(labels)},
            "spec": {
                "nodeName": self.stations[station].name,
                "automountServiceAccountToken": False,
                "containers": [{"name": "client", "image": "none"}],
                "terminationGracePeriodSeconds": 0,
            },
        }
        uid: str = self.api.create(f"/api/v1/namespaces/{namespace}/pods", document)["metadata"]["uid"]
        try:
            yield uid
        finally:
            self.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace=0)
            self.kubelet.wait_until(lambda: self.pod(uid) is None, what=f"{name} is gone")

    def forget(self, pod: RunningPod) -> None:
        """Delete the object of a pod that is finished."""
        self.api.delete(pod.path, grace=0)

    def annotate(self, pod: RunningPod, *egresses: str) -> None:
        """Change what a running pod names; nothing takes the annotation away."""
        self.api.patch(pod.path, {"metadata": {"annotations": {ANNOTATION: ",".join(egresses) or None}}})

    def pod(self, uid: str) -> RunningPod | None:
        """The pod, if it runs."""
        return next((pod for pod in self.kubelet.pods if pod.uid == uid), None)

    def await_seen(self, client: RunningPod, version: int, whom: str, *, address: str = "") -> None:
        """Until the host sees what the client sends come from there; its usual address unless another is given."""
        target = address or ADDRESSES[version]
        wait_until(
            lambda: sees(client, self.external, target, whom),
            what=f"{client.sandbox.pod.name} is seen as {whom} by {target}",
            timeout=PATIENCE,
            pause=PAUSE,
        )


@dataclass(slots=True)
class EgressUnderTest:
    """One Egress and what has become of it."""

    world: World
    name: str
    spec: dict[str, Any]
    addresses: dict[int, str] = field(default_factory=dict)
    """The Service's, by IP version."""

    @property
    def path(self) -> str:
        return f"{EGRESSES}/{self.name}"

    def routers(self) -> list[RunningPod]:
        """Its pods that run."""
        label = "app.kubernetes.io/instance"
        return [
            pod for pod in self.world.kubelet.pods if pod.document["metadata"].get("labels", {}).get(label) == self.name
        ]

    def service(self) -> Document | None:
        """Its Service."""
        return self.world.api.find(f"/api/v1/namespaces/{EGRESS_NAMESPACE}/services/{self.name}")

    def create(self) -> None:
        """Create it, for the first time or after a `delete`, and wait until it serves."""
        document = {"apiVersion": "coil.cybozu.com/v2", "kind": "Egress", "metadata": {"name": self.name}}
        self.world.api.create(EGRESSES, {**document, "spec": self.spec})
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until as many routers as wanted are ready, and every node leads the Service's addresses to them."""
        kubelet = self.world.kubelet
        kubelet.wait_until(self.service, what=f"{self.name} has a Service")
        service = self.service()
        assert service is not None
        spec = service["spec"]
        self.addresses = {6 if ":" in each else 4: each for each in spec.get("clusterIPs") or [spec["clusterIP"]]}

        def ready() -> bool:
            routers = self.routers()
            return len(routers) == self.spec["replicas"] and all(router.ready for router in routers)

        kubelet.wait_until(ready, what=f"{self.name} has its ready routers")
        self.world.external.learn(self.world.stations)
        for station in self.world.stations:
            for address in self.addresses.values():
                station.wait_programmed(address)

    def change(self, **spec: Any) -> None:
        """Patch its spec."""
        self.world.api.patch(self.path, {"spec": spec})

    def delete(self) -> None:
        """Delete it and return when its routers and its Service are gone. Idempotent."""
        with suppress(ApiError):
            self.world.api.delete(self.path)
        gone = lambda: not self.routers() and self.service() is None  # noqa: E731
        self.world.kubelet.wait_until(gone, what=f"the routers and the Service of {self.name} are gone")
