"""The binding `openvswitch`: a pod's veth becomes a port of Open vSwitch's integration bridge, with the name by which
Neutron's agent on the node, or OVN's controller, knows it (`external_ids:iface-id`). They do the rest.

A port is marked as transient, so that Open vSwitch forgets it when the node is booted; its database would have it else,
with a link that is gone or another pod's by then. Ports whose links are gone all the same are deleted at the start, and
with every sweep; one whose link is there may be a running pod's of which nobody knows any more, and stays.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.kernel.link import LinkName
from coild.model.port_error import BindError, BindTimeoutError
from coild.neutron.binding import PortBinding
from coild.neutron.ovsdb import OvsdbError, transact
from coild.neutron.undoing import UNDO_SECONDS, undone_if_failed

OPENVSWITCH: Final = "openvswitch"
"""The type of its ports."""
INTEGRATION_BRIDGE: Final = "br-int"
OWNER: Final = "coil-container"
"""The key in `external_ids` that tells coild's interfaces from others; its value is the container."""
_WAIT_MILLISECONDS: Final = 600_000
"""How long the database may look for a change; whoever waits has less time."""


def node_links() -> frozenset[str]:
    """The names of the links of the process's network namespace."""
    return frozenset(name for _, name in socket.if_nameindex())


class OpenVSwitchBinding:
    """Implements `coild.neutron.binding.Binding`. `database` is the path of its socket; `links` are the node's. One per
    process.
    """

    def __init__(
        self,
        database: Path,
        *,
        bridge: str = INTEGRATION_BRIDGE,
        links: Callable[[], frozenset[str]] = node_links,
        log: FilteringBoundLogger,
    ) -> None:
        self._socket = database
        self._bridge = bridge
        self._links = links
        self._log = log

    async def prepare(self, bound: Collection[PortBinding]) -> None:
        """See `Binding`. Ports without a link are deleted. Where nothing is bound, Open vSwitch may be absent."""
        try:
            async with asyncio.timeout(UNDO_SECONDS):
                found = await self._interfaces([])
                links = self._links()
                for name, ids in found.items():
                    if OWNER in ids and name not in links:
                        self._log.info("a port without a link is deleted", link=name, port=ids.get("iface-id"))
                        await self._delete(name)
        except (OvsdbError, TimeoutError) as error:
            if bound:
                raise BindError(str(error) or f"no answer of Open vSwitch at {self._socket}") from error

    async def bind(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`. On return Open vSwitch has the link."""
        await undone_if_failed(
            self._bounded(lambda: self._plug(binding), f"plugged in the port {binding.port.port}", timeout),
            lambda: self.unbind(binding, timeout=UNDO_SECONDS),
        )

    async def apply_rules(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`. Neutron's agent, or OVN's controller, enforces them."""

    async def unbind(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`. A port that the link was plugged into by somebody else stays."""
        await self._bounded(lambda: self._unplug(binding), f"unplugged the port {binding.port.port}", timeout)

    async def _plug(self, binding: PortBinding) -> None:
        name, port = binding.ifname, binding.port
        ids = _map(
            {
                OWNER: binding.endpoint,
                "iface-id": port.port,
                "iface-status": "active",
                "attached-mac": port.mac,
                "vm-uuid": port.pod_uid,
            }
        )
        named = [["name", "==", name]]
        bridge = [["name", "==", self._bridge]]
        bridges, present = await transact(
            self._socket, [_select("Bridge", bridge, "name"), _select("Port", named, "_uuid")]
        )
        if not bridges["rows"]:
            raise OvsdbError(f"Open vSwitch has no bridge {self._bridge}: is Neutron's agent installed on this node?")
        operations: list[dict[str, Any]] = []
        if present["rows"]:
            operations.append({"op": "update", "table": "Interface", "where": named, "row": {"external_ids": ids}})
            reference = present["rows"][0]["_uuid"]
        else:
            interface = {"name": name, "external_ids": ids}
            row = {"name": name, "interfaces": ["named-uuid", "interface"], "other_config": _map({"transient": "true"})}
            operations += (
                {"op": "insert", "table": "Interface", "row": interface, "uuid-name": "interface"},
                {"op": "insert", "table": "Port", "row": row, "uuid-name": "port"},
            )
            reference = ["named-uuid", "port"]
        operations.append(_mutate("Bridge", bridge, "ports", "insert", reference))
        await transact(self._socket, operations)
        waits = {
            **{"op": "wait", "table": "Interface", "where": named, "columns": ["ofport"]},
            **{"until": "!=", "rows": [{"ofport": ["set", []]}], "timeout": _WAIT_MILLISECONDS},
        }
        _, looked = await transact(self._socket, [waits, _select("Interface", named, "ofport", "error")])
        if not looked["rows"]:
            raise OvsdbError(f"somebody has deleted the port {name} of Open vSwitch's bridge {self._bridge}")
        if looked["rows"][0]["ofport"] == -1:
            raise OvsdbError(f"Open vSwitch cannot use the link {name}: {looked['rows'][0]['error']}")

    async def _unplug(self, binding: PortBinding) -> None:
        ids = (await self._interfaces([["name", "==", binding.ifname]])).get(binding.ifname)
        if ids is not None and ids.get("iface-id") == binding.port.port:
            await self._delete(binding.ifname)

    async def _interfaces(self, where: list[Any]) -> dict[LinkName, dict[str, str]]:
        """The interfaces' `external_ids` by their names."""
        [found] = await transact(self._socket, [_select("Interface", where, "name", "external_ids")])
        return {LinkName(row["name"]): dict(row["external_ids"][1]) for row in found["rows"]}

    async def _delete(self, name: LinkName) -> None:
        [found] = await transact(self._socket, [_select("Port", [["name", "==", name]], "_uuid")])
        for row in found["rows"]:
            # A port that no bridge has is deleted by the database, with its interfaces.
            where = [["ports", "includes", row["_uuid"]]]
            await transact(self._socket, [_mutate("Bridge", where, "ports", "delete", row["_uuid"])])

    async def _bounded(self, call: Callable[[], Awaitable[None]], done: str, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await call()
        except TimeoutError:
            raise BindTimeoutError(
                f"Open vSwitch has not {done} within {timeout:g} s: is ovs-vswitchd running?"
            ) from None
        except OvsdbError as error:
            raise BindError(str(error)) from error


def _select(table: str, where: list[Any], *columns: str) -> dict[str, Any]:
    return {"op": "select", "table": table, "where": where, "columns": list(columns)}


def _mutate(table: str, where: list[Any], column: str, how: str, reference: Any) -> dict[str, Any]:
    return {"op": "mutate", "table": table, "where": where, "mutations": [[column, how, reference]]}


def _map(entries: dict[str, str]) -> list[Any]:
    return ["map", [[key, value] for key, value in entries.items()]]
