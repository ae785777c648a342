"""What a dump consists of, read a few pieces at a time; a piece that cannot be read is told, and the rest goes on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import msgspec

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import CONFIG_MAPS, EVENTS, NODES, PODS, SERVICES
from coil.crd.egress import EGRESSES
from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_ENDPOINT_SLICES, EGRESS_GATEWAY_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.endpoint_slice import ENDPOINT_SLICES
from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_NAME
from coil.crd.resource import NamespacedName, Resource
from coil.kube.errors import ApiError, NotFoundError
from coil.page.document import Document, render_json
from coil.page.node_dump import Part
from kubectl_coil.cluster import Cluster, ExecError
from kubectl_coil.installation import find_homes
from kubectl_coil.ipam.lookup import look_up
from kubectl_coil.node_reader import SECONDS, ExecNodeReader, NodeUnreadableError
from kubectl_coil.program import PROGRAMS, Container, Program, read_metrics
from kubectl_coil.status.assessment import assess
from kubectl_coil.status.resources import DAEMON_SETS, DEPLOYMENTS
from kubectl_coil.status.snapshot import read_snapshot
from kubectl_coil.sysdump.archive import Archive
from kubectl_coil.sysdump.redaction import redact

AT_A_TIME: Final = 8
LOG_LINES: Final = 5000
LOG_BYTES: Final = 4 << 20
_VALUES: Final = "coil-values"
_LABELS: Final = f"{LABEL_APP_NAME}={APP_NAME}"
_PARTS: Final = tuple(part for part in Part if part is not Part.METRICS)

KINDS: Final[tuple[Resource[Any], ...]] = (
    *(ADDRESS_POOLS, ADDRESS_BLOCKS, BLOCK_REQUESTS, EGRESSES, EGRESS_CLIENT_SLICES),
    *(EGRESS_GATEWAYS, EGRESS_GATEWAY_POLICIES, EGRESS_TUNNELS, EGRESS_ENDPOINT_SLICES),
    *(NODES, SERVICES, ENDPOINT_SLICES, EVENTS, DAEMON_SETS, DEPLOYMENTS),
)
"""Those that are read whole, of all namespaces."""

Piece = Callable[[], Awaitable[bytes]]


@dataclass(slots=True)
class Collector:
    """`nodes` are asked by name, or `most` of them; `left_out` has the others in the end. `progress` is called with the
    pieces that are done and those that there are.
    """

    cluster: Cluster
    archive: Archive
    nodes: Sequence[str] = ()
    most: int = 20
    progress: Callable[[int, int], None] = lambda done, whole: None
    left_out: Sequence[str] = ()
    _done: int = 0
    _whole: int = 0
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))

    async def collect(self) -> datetime:
        """Everything; returns the API server's time. Raises ApiError if it does not answer at all, and OSError."""
        first = await self.cluster.read_raw("/version")
        self.archive.add("version.json", first)
        programs = await self._list_programs()
        pieces = dict(self._objects())
        pieces |= {"status.json": self._status, "ipam.json": self._ipam, "helm.json": self._helm}
        for program in programs:
            pieces |= dict(self._of_program(program))
        for node in await self._choose_nodes():
            pieces[f"nodes/{node}.json"] = _bind(self._node, node)
        self._whole = len(pieces)
        async with asyncio.TaskGroup() as group:
            for name, piece in pieces.items():
                group.create_task(self._take(name, piece))
        return self.cluster.now()

    async def _take(self, name: str, piece: Piece) -> None:
        try:
            async with self._gate:
                self.archive.add(name, await piece())
        except NotFoundError as error:
            if not name.endswith(".previous.log"):  # a container that has been started once
                self.archive.fail(name, str(error))
        except (ApiError, ExecError, NodeUnreadableError, ValueError) as error:
            if not name.endswith(".previous.log") or "previous terminated container" not in str(error):
                self.archive.fail(name, str(error))
        self._done += 1
        self.progress(self._done, self._whole)

    # --- objects

    def _objects(self) -> Iterator[tuple[str, Piece]]:
        for resource in KINDS:
            yield f"objects/{resource.plural}.json", _bind(self._list, resource)

        yield "objects/pods.json", self._pods
        yield "objects/own_pods.json", self._own_pods

    async def _list(self, resource: Resource[Any]) -> bytes:
        return _redacted(await self.cluster.list(_whole(resource)))

    async def _pods(self) -> bytes:
        """Of all pods what `coil.crd.builtin.Pod` has of them: a cluster may have 100 000."""
        return _redacted([msgspec.to_builtins(pod) for pod in await self.cluster.list(PODS)])

    async def _own_pods(self) -> bytes:
        return _redacted(await self.cluster.list(_whole(PROGRAMS), labels=_LABELS))

    async def _status(self) -> bytes:
        return _rendered(assess(await read_snapshot(self.cluster)))

    async def _ipam(self) -> bytes:
        return _rendered(await look_up(self.cluster, ExecNodeReader(self.cluster), None))

    async def _helm(self) -> bytes:
        """The chart and its values, as the chart itself has written them down."""
        [home, *_] = await find_homes(self.cluster) or [""]
        data = (await self.cluster.get(CONFIG_MAPS, _VALUES, namespace=home)).data
        values = redact(msgspec.json.decode(data.get("values.json", "{}")))
        return msgspec.json.encode({"chart": data.get("chart"), "release": data.get("release"), "values": values})

    # --- programs

    async def _list_programs(self) -> list[Program]:
        """Those in Coil's namespace, and routers of Egresses, wherever they are."""
        homes = await find_homes(self.cluster)
        found = await self.cluster.list(PROGRAMS, labels=_LABELS)
        return [each for each in found if each.metadata.namespace in homes or _is_router(each)]

    def _of_program(self, program: Program) -> Iterator[tuple[str, Piece]]:
        place = f"{program.key.namespace}/{program.key.name}"
        for container in (*program.spec.init_containers, *program.spec.containers):
            for suffix, previous in (("log", False), ("previous.log", True)):
                yield f"logs/{place}/{container.name}.{suffix}", _bind(self._log, program.key, container.name, previous)
        for container in program.spec.containers:
            if container.metrics:
                yield f"metrics/{place}/{container.name}.txt", _bind(self._metrics, program, container)

    async def _log(self, pod: NamespacedName, container: str, previous: bool) -> bytes:
        path = PODS.path(namespace=pod.namespace, name=pod.name, subresource="log")
        query = {
            "container": container,
            "tailLines": str(LOG_LINES),
            "limitBytes": str(LOG_BYTES),
            "timestamps": "true",
        }
        return await self.cluster.read_raw(path, query | ({"previous": "true"} if previous else {}))

    async def _metrics(self, program: Program, container: Container) -> bytes:
        return await read_metrics(self.cluster, program, container, seconds=SECONDS)

    # --- nodes

    async def _choose_nodes(self) -> list[str]:
        names = sorted(node.metadata.name for node in await self.cluster.list(NODES))
        chosen = [name for name in names if name in self.nodes] if self.nodes else names[: self.most]
        self.left_out = [name for name in names if name not in chosen]
        return chosen

    async def _node(self, name: str) -> bytes:
        return _rendered(await ExecNodeReader(self.cluster).read(name, _PARTS))


def _is_router(program: Program) -> bool:
    return program.metadata.labels.get(LABEL_APP_COMPONENT) == COMPONENT_EGRESS


def _whole(resource: Resource[Any]) -> Resource[Any]:
    """Its objects with all fields, not only those that Coil's programs read."""
    return replace(resource, type=dict)


def _redacted(items: Sequence[Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode([redact(each) for each in items]))


def _rendered(document: Document) -> bytes:
    return render_json(document).encode()


def _bind(function: Callable[..., Awaitable[bytes]], *arguments: Any) -> Piece:
    return lambda: function(*arguments)
