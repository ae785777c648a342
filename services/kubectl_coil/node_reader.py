"""What a node knows and the API server does not: `coil-node-dump`, run in the pod of the node's coild, or of its EIP
agent where there is no coild.

command ─► NodeReader ─► Executor (pods/exec) ─► coil-node-dump ─► coil.page.node_dump.NodeDump
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from coil.crd.builtin import PODS, Pod
from coil.crd.names import APP_NAME, LABEL_APP_COMPONENT, LABEL_APP_NAME
from coil.crd.resource import NamespacedName
from coil.kube.errors import ApiError, ForbiddenError
from coil.page.document import Document
from coil.page.node_document import AddressState, NodeDocument
from coil.page.node_dump import VERSION, NodeDump, Part
from kubectl_coil.cluster import ExecError, Executor, Reader
from kubectl_coil.installation import COILD, find_homes
from kubectl_coil.program import NODE_DUMP

SECONDS: Final = 30.0
LIMIT: Final = 64 << 20
"""Bytes of one node's dump."""
_HOSTS: Final = ((COILD, COILD), ("egress-agent-node", "coil-egress-agent-node"))
"""Component and container; the agent's does not see the pods' namespaces."""
_RUNNING: Final = "Running"


class NodeUnreadableError(Exception):
    """What the node holds could not be read; the message says of which node, why, and what to do."""


class NodeReader(Protocol):
    """Who reads nodes."""

    async def read(self, node: str, parts: Collection[Part]) -> NodeDump:
        """These parts of what the node holds. Raises NodeUnreadableError."""
        ...


class _ClusterAccess(Reader, Executor, Protocol):
    pass


@dataclass(slots=True)
class ExecNodeReader:
    """A `NodeReader` of a cluster's nodes. What it runs is in Coil's own namespace: nobody else can pass for coild."""

    _cluster: _ClusterAccess
    _homes: list[str] = field(default_factory=list)
    """Where Coil is installed, as soon as it is known."""

    async def read(self, node: str, parts: Collection[Part]) -> NodeDump:
        try:
            pod, container = await self._find_host(node)
            command = [NODE_DUMP, f"--parts={','.join(sorted(parts))}"]
            output = await self._cluster.execute(pod, command, container=container, seconds=SECONDS, limit=LIMIT)
        except ForbiddenError as error:
            raise NodeUnreadableError(
                f"the node {node} was not asked: {error.message}: ask for the ClusterRole coil-node-reader"
            ) from error
        except (ApiError, ExecError) as error:
            raise NodeUnreadableError(f"the node {node} could not be asked: {error}") from error
        return _decode(output, node)

    async def _find_host(self, node: str) -> tuple[NamespacedName, str]:
        """A pod, and its container that has the program and the node's network."""
        self._homes = self._homes or await find_homes(self._cluster)
        fields = f"spec.nodeName={node},status.phase={_RUNNING}"
        for component, container in _HOSTS:
            labels = f"{LABEL_APP_NAME}={APP_NAME},{LABEL_APP_COMPONENT}={component}"
            for namespace in self._homes:
                if pods := await self._cluster.list(PODS, namespace=namespace, labels=labels, fields=fields):
                    return _newest(pods), container
        raise NodeUnreadableError(f"the node {node} could not be asked: neither coild nor an EIP agent runs on it")


class EniUse(Document, frozen=True, kw_only=True):
    """What commands read of `coil.page.eni_document.EniAddressDocument`."""

    address: str
    state: AddressState
    namespace: str | None
    pod: str | None
    container: str | None
    since: datetime | None


class EniInterface(Document, frozen=True, kw_only=True):
    id: str
    used: tuple[EniUse, ...]


class EniLedger(Document, frozen=True, kw_only=True):
    """What commands read of `coil.page.eni_document.EniNodeDocument`, which msgspec writes but cannot read: it decodes
    no unions of two address types.
    """

    interfaces: tuple[EniInterface, ...]


def ledger_of(dump: NodeDump, node: str) -> NodeDocument | EniLedger:
    """The addresses of the node, as its coild knows them. Raises NodeUnreadableError."""
    page: Any = dump.inspection
    if page is None:
        why = "; ".join(dump.troubles) or "it has no page of addresses (--inspect-page-addr=off, or they are Neutron's)"
        raise NodeUnreadableError(f"the coild of {node} does not tell its addresses: {why}")
    type_: Any = EniLedger if isinstance(page, dict) and "interfaces" in page else NodeDocument
    try:
        found: NodeDocument | EniLedger = msgspec.convert(page, type_, dec_hook=_parse_value)
    except msgspec.ValidationError as error:
        raise NodeUnreadableError(f"the page of the coild of {node} is of another version: {error}") from error
    return found


def _parse_value(type_: type[Any], value: Any) -> Any:
    """Addresses and networks are text in the document."""
    return type_(value)


def _newest(pods: Collection[Pod]) -> NamespacedName:
    """During an update, two may run for a moment."""
    pod = max(pods, key=lambda pod: (str(pod.metadata.creation_timestamp), pod.metadata.name))
    return NamespacedName(pod.metadata.namespace, pod.metadata.name)


def _decode(output: bytes, node: str) -> NodeDump:
    try:
        dump = msgspec.json.decode(output, type=NodeDump)
    except msgspec.MsgspecError as error:
        raise NodeUnreadableError(f"the answer of the node {node} cannot be read: {error}") from error
    if dump.version != VERSION:
        raise NodeUnreadableError(
            f"the node {node} answers in version {dump.version}, and this command reads version {VERSION}: "
            "use the one that belongs to the image"
        )
    return dump
