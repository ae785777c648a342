"""Ports that wait for pods: created several in one call, and given to a pod by one update, which takes Neutron less
time than a creation.

There are some for each network and host that has pods on it (`PoolKey`). A port that waits has never been plugged in,
is in no security group, and says by its name that it serves nobody (`Kind.POOLED_PORT`); everything that is the pod's
is set in the call that gives the port to it. A port that a pod has had is deleted and does not come back: nobody knows
what others have tied to it, such as a floating IP.

An update names the revision of the port that was read, so a call of a former leader that is still under way and one of
this leader never give the same port to two pods.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from structlog.typing import FilteringBoundLogger

from coil.manager.term import Channel
from coil.neutron.identity import ClusterId, Identity, Kind, parse_identity
from coil.neutron.resource import NetworkId, Port, PortId
from coil.openstack.error import ConflictError, NotFoundError, OpenStackError, UnavailableError
from coil.openstack.neutron import Neutron, PortAssignment, PortRequest
from coil_raven.namespace_network import NamespaceNetwork
from coil_raven.network_removal import POD_OWNER

DESCRIPTION: Final = "waits for a pod"
KEEP_SECONDS: Final = 600.0
"""How long a pool is kept that no pod of its host needs any more: pods of a job come back."""
QUIET_SECONDS: Final = 1.0
"""A pool is filled up when no pod has asked for a port that long; pods that come together would wait meanwhile."""
LONGEST_PAUSE: Final = 20.0
"""The same where pods keep coming, in seconds since half of the pool was taken."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """Whose ports these are; `host` as Neutron's agents name it. As text, the key of a controller."""

    network: NetworkId
    host: str

    def __str__(self) -> str:
        return f"{self.network}/{self.host}"

    @classmethod
    def parse(cls, text: str) -> "PoolKey":
        """What `str` has made."""
        network, _, host = text.partition("/")
        return cls(NetworkId(network), host)


@dataclass(slots=True)
class _Pool:
    """`idle` in the order in which they came. `used_at` is when a pod of the host needed it last, `asked_at` when one
    asked for a port, and `low_since` when half of them were found taken.

    `uncertain`: a creation was not answered, so there may be more.
    """

    used_at: float
    asked_at: float = -QUIET_SECONDS
    low_since: float | None = None
    idle: dict[PortId, Port] = field(default_factory=dict)
    uncertain: bool = False


class PortPools:
    """Of one term. `changed` tells the keys of pools that have more or fewer ports now.

    `size` is how many ports a pool is filled up to; with 0, what is left of another setting is deleted. `clock` is in
    monotonic seconds. Calls of `maintain` for one key do not overlap.
    """

    def __init__(
        self,
        neutron: Neutron,
        *,
        cluster: ClusterId,
        size: int,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._neutron = neutron
        self._cluster = cluster
        self._size = size
        self._clock = clock
        self._log = log
        self._pools: dict[PoolKey, _Pool] = {}
        self.changed: Channel[PoolKey] = Channel()

    def ids(self) -> frozenset[PortId]:
        """Of all ports that wait."""
        return frozenset(port for pool in self._pools.values() for port in pool.idle)

    def pool_keys(self) -> list[PoolKey]:
        """Those of all pools. A copy."""
        return list(self._pools)

    def ports(self) -> list[Port]:
        """All that wait, as they were when they were last looked at. A copy."""
        return [port for pool in self._pools.values() for port in pool.idle.values()]

    def adopt(self, listed: Iterable[Port], *, before: Collection[PortId], taken: Collection[PortId]) -> None:
        """Know the ports that wait in Neutron's list, and forget those that it does not have.

        `before` are those that waited when the list was asked for, `taken` those that pods have by now: what was done
        in the meantime stands against the list.
        """
        present = {port.id: port for port in listed}
        for key, pool in list(self._pools.items()):
            for gone in [port for port in pool.idle if port in before and port not in present]:
                del pool.idle[gone]
                self.changed.send(key)
            if not pool.idle and self._clock() - pool.used_at > KEEP_SECONDS:
                # Of a network or a node that is no more.
                del self._pools[key]
        known = self.ids()
        for port in present.values():
            if port.id not in known and port.id not in before and port.id not in taken:
                self._put(port)

    async def take(self, request: PortRequest) -> Port | None:
        """One of the ports that wait, now as the request wants it; None if there is none. Raises OpenStackError.

        After an UnavailableError, or cancelled, nobody knows whether the port has the request's name.
        """
        if not self._size:
            return None
        key = PoolKey(request.network, request.host)
        pool = self._pools.setdefault(key, _Pool(self._clock()))
        pool.used_at = pool.asked_at = self._clock()
        self.changed.send(key)
        assignment = PortAssignment(
            name=request.name, description=request.description, device_id=request.device_id, groups=request.groups
        )
        while (port := _first(pool, request)) is not None:
            del pool.idle[port.id]
            try:
                return await self._neutron.assign_port(port, assignment)
            except (NotFoundError, ConflictError) as error:
                # Somebody has deleted it, or changed it. If it still waits, the next list has it.
                self._log.info("a pooled port was passed over", port=port.id, error=str(error))
            except UnavailableError:
                raise
            except OpenStackError:
                # Nothing was done, so it waits on.
                pool.idle[port.id] = port
                raise
        return None

    async def evict(self, network: NetworkId | None) -> bool:
        """Delete one port that waits, of that network or of any, to make room for a pod's.

        False if none waits. Raises OpenStackError.
        """
        candidates = [
            (len(pool.idle), key) for key, pool in self._pools.items() if pool.idle and network in (None, key.network)
        ]
        if not candidates:
            return False
        _, key = max(candidates, key=lambda candidate: candidate[0])
        idle = self._pools[key].idle
        port = next(iter(idle))
        del idle[port]
        await self._neutron.delete_port(port)
        return True

    async def maintain(self, key: PoolKey, network: NamespaceNetwork, *, in_use: bool) -> float | None:
        """Fill the pool up, or empty it if it is not needed any more; `in_use` says whether a pod of the host needs it.

        The seconds until it is to be called again, None if a change is to be waited for. Raises OpenStackError.
        """
        pool = self._pools.setdefault(key, _Pool(self._clock()))
        if pool.uncertain:
            await self._look_for_more(key, pool)
        if in_use:
            pool.used_at = self._clock()
        left = pool.used_at + KEEP_SECONDS - self._clock()
        wanted = self._size if left > 0 else 0
        for port in list(pool.idle)[wanted:]:
            # First, so that no pod takes it meanwhile.
            del pool.idle[port]
            await self._neutron.delete_port(port)
        if in_use and len(pool.idle) <= self._size // 2:
            if (pause := self._pause(pool)) > 0.0:
                return pause
            await self._fill(key, pool, network)
        if pool.idle:
            return None if in_use else max(left, 1.0)
        self._pools.pop(key, None)
        return None

    def _pause(self, pool: _Pool) -> float:
        """How many seconds it is too early to fill it."""
        now = self._clock()
        if pool.low_since is None:
            pool.low_since = now
        return min(pool.asked_at + QUIET_SECONDS, pool.low_since + LONGEST_PAUSE) - now

    async def _fill(self, key: PoolKey, pool: _Pool, network: NamespaceNetwork) -> None:
        requests = [
            PortRequest(
                name=Identity(self._cluster, Kind.POOLED_PORT, str(uuid4())).name,
                description=DESCRIPTION,
                project=network.project,
                network=key.network,
                device_id="",
                device_owner=POD_OWNER,
                host=key.host,
                groups=frozenset(),
                subnets=tuple(subnet.id for subnet in network.subnets),
            )
            for _ in range(self._size - len(pool.idle))
        ]
        if not requests:
            return
        pool.uncertain = True
        try:
            ports = await self._neutron.create_ports(requests)
        except UnavailableError:
            # They may exist. A cancellation, too, leaves it uncertain.
            raise
        except OpenStackError:
            pool.uncertain = False
            raise
        pool.uncertain = False
        pool.low_since = None
        pool.idle.update((port.id, port) for port in ports)

    async def _look_for_more(self, key: PoolKey, pool: _Pool) -> None:
        known = self.ids()
        for port in await self._neutron.ports(network=key.network, device_owner=POD_OWNER):
            if self.is_pooled(port) and port.host_id == key.host and port.id not in known:
                pool.idle[port.id] = port
        pool.uncertain = False

    def is_pooled(self, port: Port) -> bool:
        """Whether it is a port of this cluster that waits for a pod."""
        identity = parse_identity(port.name)
        return identity is not None and identity.cluster == self._cluster and identity.kind is Kind.POOLED_PORT

    def _put(self, port: Port) -> None:
        key = PoolKey(port.network_id, port.host_id)
        self._pools.setdefault(key, _Pool(self._clock())).idle[port.id] = port
        self.changed.send(key)


def _first(pool: _Pool, request: PortRequest) -> Port | None:
    """The one that has waited for the longest, among those with an address of each subnet that is wanted."""
    for port in pool.idle.values():
        if {fixed.subnet_id for fixed in port.fixed_ips} == set(request.subnets):
            return port
    return None
