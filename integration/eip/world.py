"""The stage: three nodes and the server on one link; and what tests do with gateways, policies and pods."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.egress.api import Api, ApiError, Document
from integration.egress.conversation import ask
from integration.eip.announcement import Announcements
from integration.eip.description import Description
from integration.eip.node import StageNode
from integration.eip.pod import Pod
from integration.eip.server import Server
from integration.patience import TIMEOUT, wait_until
from integration.vm.passage import ensure_passage
from integration.vm.run import INSIDE_VARIABLE

GROUP = "/apis/egressgateway.spidernet.io/v1beta1"
GATEWAYS = f"{GROUP}/egressgateways"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/coil-eip-leases/leases"
SHOP = "shop"
_NODES = ("n1", "n2", "n3")
_EIPS = range(120, 255)
"""Where the addresses that tests take are in the nodes' networks."""
_SLOWNESS = 8 if os.environ.get(INSIDE_VARIABLE) else 1
"""An emulated machine's."""
_QUESTION = 0.5 * _SLOWNESS
"""Seconds for one question while it is not known whether anybody answers."""
_LOG_LINES = 60


class World:
    """Make it with `up`. Gateways, policies and pods are a test's own."""

    def __init__(self, workspace: Workspace, network: Network, api: Api, nodes: list[StageNode]) -> None:
        self.api = api
        self.network = network
        self.nodes = nodes
        self.server = Server(workspace, network)
        self._workspace = workspace
        self._offsets = cycle(_EIPS)

    @classmethod
    @contextmanager
    def up(cls, description: Description, *agent_flags: str) -> Iterator["World"]:
        """Everything but pods, every agent ready. Ends with the context."""
        with Workspace.create() as workspace, closing(Api(description)) as api, ExitStack() as undo:
            ensure_passage(description.address)
            network = Network.create(workspace, description.families)
            # Of the ports that are isolated none reaches another: see `StageNode.cut_off`.
            network.fabric.run("bridge", "link", "set", "dev", "host", "isolated", "on")
            nodes = [
                StageNode(workspace, network, description, api, name=name, index=index, agent_flags=agent_flags)
                for index, name in enumerate(_NODES)
            ]
            world = cls(workspace, network, api, nodes)
            for node in nodes:
                node.be_known(nodes)
                node.register()
                undo.callback(node.unregister)
                node.start_agent()
            world.restore()
            yield world

    def restore(self) -> None:
        """Every node on the link with an agent that works, whatever the test before has done to it."""
        for node in self.nodes:
            node.rejoin()
            node.revive()
        for node in self.nodes:
            node.agent.wait_ready()
            self.await_ready(node)

    @property
    def families(self) -> tuple[int, ...]:
        """The cluster's IP versions; the first is that of a node's first address."""
        families: tuple[int, ...] = self.network.families.value
        return families

    def node(self, name: str) -> StageNode:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def await_ready(self, node: StageNode) -> None:
        """Until its tunnel is."""
        wait_until(lambda: self.phase(node) == "Ready", what=f"the tunnel of {node.name} is Ready", timeout=2 * TIMEOUT)

    def await_lease(self, node: StageNode) -> None:
        """Until it holds its lease."""
        wait_until(lambda: self.held(node), what=f"{node.name} holds its lease")

    def phase(self, node: StageNode) -> str:
        """Of its tunnel."""
        tunnel = self.api.find(f"{GROUP}/egresstunnels/{node.name}") or {}
        return str(tunnel.get("status", {}).get("phase", ""))

    def held(self, node: StageNode) -> bool:
        """Whether it holds its lease."""
        return bool(self._lease(node).get("holderIdentity", "") == node.name)

    def renewed_at(self, node: StageNode) -> str:
        """When it last renewed its lease, as the lease has it."""
        return str(self._lease(node).get("renewTime", ""))

    def _lease(self, node: StageNode) -> Document:
        """The spec of its lease; empty if it has none."""
        spec: Document = (self.api.find(f"{LEASES}/coil-eip-{node.name}") or {}).get("spec", {})
        return spec

    def states(self) -> dict[str, dict[str, object]]:
        """What the kernels of all nodes hold, to be compared."""
        return {node.name: node.state() for node in self.nodes}

    def announcements(self) -> Announcements:
        """A capture on the link."""
        return Announcements(self.network.fabric.net, _NODES)

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and last lines of what every program has logged."""
        for path in sorted((self._workspace.folder / "logs").glob("*.log")):
            yield path.stem, "\n".join(path.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    # --- objects

    def take_eips(self, number: int) -> dict[int, list[str]]:
        """That many addresses of each family on the nodes' network: nobody has had them, or they were released longest
        ago, as tests release theirs.
        """
        assert number <= len(_EIPS), "the stage has not that many addresses"
        offsets = [next(self._offsets) for _ in range(number)]
        return {
            4: [str(self.network.ipv4[offset]) for offset in offsets],
            6: [str(self.network.ipv6[0x1000 + offset]) for offset in offsets],
        }

    @contextmanager
    def gateway(
        self,
        *nodes: str,
        name: str = "",
        number: int = 2,
        families: Sequence[int] = (),
        allocation: str = "PreferUnused",
        **spec: Any,
    ) -> Iterator["Gateway"]:
        """An EgressGateway on those nodes with so many addresses of each family, by default of the cluster's, of which
        policies get one by `allocation`; deleted at the end of the block. By default it has a name that no other one
        has.
        """
        gateway = Gateway(self, name or f"gw-{secrets.token_hex(3)}", self.take_eips(number))
        ranges = {
            "policy": allocation,
            **{f"ipv{family}": gateway.eips[family] for family in families or self.families},
        }
        document = {
            "apiVersion": "egressgateway.spidernet.io/v1beta1",
            "kind": "EgressGateway",
            "metadata": {"name": gateway.name},
            "spec": {"ranges": ranges, "nodeSelector": {"selector": select_nodes(*nodes)}, **spec},
        }
        self.api.create(GATEWAYS, document)
        try:
            yield gateway
        finally:
            wait_until(lambda: self._delete(gateway.path), what=f"{gateway.name} may be deleted")

    @contextmanager
    def policy(
        self, gateway: "Gateway | str", *, labels: Mapping[str, str] | None = None, namespace: str = SHOP, **spec: Any
    ) -> Iterator["Policy"]:
        """An EgressGatewayPolicy for pods with those labels (or `appliedTo` in `spec`); gone after the block."""
        policy = Policy(self, namespace, f"policy-{secrets.token_hex(3)}")
        if labels is not None:
            spec = {"appliedTo": {"podSelector": {"matchLabels": dict(labels)}}, **spec}
        if gateway:
            spec = {"egressGatewayName": gateway if isinstance(gateway, str) else gateway.name, **spec}
        document = {
            "apiVersion": "egressgateway.spidernet.io/v1beta1",
            "kind": "EgressGatewayPolicy",
            "metadata": {"name": policy.name},
            "spec": spec,
        }
        self.api.create(policy.folder, document)
        try:
            yield policy
        finally:
            policy.delete()

    @contextmanager
    def pod(self, node: str, *, namespace: str = SHOP, **labels: str) -> Iterator[Pod]:
        """A pod that runs there; gone after the block."""
        pod = self.node(node).make_pod(namespace, labels)
        try:
            yield pod
        finally:
            self.node(node).delete_pod(pod)

    @contextmanager
    def starting_pod(self, node: str, *, namespace: str = SHOP, **labels: str) -> Iterator[Pod]:
        """A pod that runs there already, and of whose addresses nobody knows before `StageNode.report`."""
        pod = self.node(node).make_pod(namespace, labels, reported=False)
        try:
            yield pod
        finally:
            self.node(node).delete_pod(pod)

    # --- what the server sees

    def seen(self, pod: Pod, address: str) -> str | None:
        """The peer of one question, as the server saw it; None when there was no answer."""
        try:
            return ask(pod, self.server, address, patience=_QUESTION)
        except TimeoutError:
            return None

    def await_seen(self, pod: Pod, expected: str | None, *, at: dict[int, str] | None = None) -> None:
        """Until the server sees the pod as that address, at its own address of that family; None: no answer comes."""
        families = self.families if expected is None else (6 if ":" in expected else 4,)
        for family in families:
            address = (at or self.server.addresses)[family]
            last: list[str | None] = []

            def as_expected(address: str = address, last: list[str | None] = last) -> bool:
                last[:] = [self.seen(pod, address)]
                return last == [expected]

            try:
                wait_until(as_expected, what=f"{address} sees {pod.sandbox.pod.name} as {expected}", timeout=TIMEOUT)
            except AssertionError as error:
                raise AssertionError(f"{error}; last seen as {last[0]}") from error

    def _delete(self, path: str) -> bool:
        """Whether it could be deleted."""
        with suppress(ApiError):
            self.api.delete(path)
            return True
        return False


@dataclass(frozen=True, slots=True)
class Gateway:
    """An EgressGateway under test and the addresses it was made with."""

    world: World
    name: str
    eips: dict[int, list[str]]

    @property
    def path(self) -> str:
        return f"{GATEWAYS}/{self.name}"

    def change(self, **spec: Any) -> None:
        """Patch its spec."""
        self.world.api.patch(self.path, {"spec": spec})

    def select(self, *nodes: str) -> None:
        """Have it choose those nodes."""
        self.change(nodeSelector={"selector": select_nodes(*nodes)})

    def status(self) -> Document:
        status: Document = self.world.api.get(self.path).get("status", {})
        return status

    def lists(self, node: str) -> bool:
        """Whether the node is in its status, and ready."""
        return any(entry["name"] == node and entry["status"] == "Ready" for entry in self.status().get("nodeList", ()))

    def holders(self, eip: str) -> list[str]:
        """The nodes in its status that have the address."""
        return [
            entry["name"]
            for entry in self.status().get("nodeList", ())
            for each in entry.get("eips", ())
            if eip in (each.get("ipv4"), each.get("ipv6"))
        ]


@dataclass(frozen=True, slots=True)
class Policy:
    """An EgressGatewayPolicy under test."""

    world: World
    namespace: str
    name: str

    @property
    def folder(self) -> str:
        return f"{GROUP}/namespaces/{self.namespace}/egressgatewaypolicies"

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    def change(self, **spec: Any) -> None:
        """Patch its spec."""
        self.world.api.patch(self.path, {"spec": spec})

    def status(self) -> Document:
        status: Document = self.world.api.get(self.path).get("status", {})
        return status

    @property
    def node(self) -> str:
        """The node that carries it; empty when none does."""
        return str(self.status().get("node", ""))

    @property
    def ready_reason(self) -> str:
        """Of its condition Ready; empty before the controller has seen it."""
        found = (each["reason"] for each in self.status().get("conditions", ()) if each["type"] == "Ready")
        return next(found, "")

    def eip(self, family: int = 4) -> str:
        """Its address once it has one."""
        wait_until(lambda: self._eip(family), what=f"{self.name} has an address", timeout=TIMEOUT)
        return self._eip(family)

    def wait_placed(self, *, elsewhere: str = "") -> str:
        """The node that carries it, once one does; another one than `elsewhere`."""
        wait_until(lambda: self.node not in ("", elsewhere), what=f"{self.name} has a node", timeout=TIMEOUT)
        return self.node

    def slices(self) -> list[Document]:
        """Its endpoint slices."""
        label = f"egressgateway.spidernet.io%2Fegressgatewaypolicy%3D{self.name}"
        folder = f"{GROUP}/namespaces/{self.namespace}/egressendpointslices"
        return self.world.api.items(f"{folder}?labelSelector={label}")

    def delete(self) -> None:
        """Idempotent."""
        self.world.api.delete(self.path)

    def _eip(self, family: int) -> str:
        return str(self.status().get("eip", {}).get(f"ipv{family}", ""))


def select_nodes(*names: str) -> Document:
    """A selector of nodes by name."""
    return {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}]}
