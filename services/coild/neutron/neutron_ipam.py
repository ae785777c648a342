"""Ports in Neutron, put together: everything that coild has for them, behind one object.

    annotations of the node's pods ─► PodHandoffs ─┐
    CNI_ARGS ──────────────────────────────────────┴► NeutronSource ─► PortLedger ◄─► the journal
                                                          │                ▲
                                                     NeutronWiring ────────┤
                                                          │            Unplugging
                                                          └► Bindings ◄────┘

`coild.main` hands nothing of it to anybody else. coild never talks to Neutron: coil-raven does, and what it has made is
in the pods' annotations (`coil.neutron.handoff`).
"""

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Pod
from coil.kube.api_client import ApiClient
from coil.netlink.error import NetlinkError
from coil.netlink.host import HostNetwork
from coil.reconcile.cache import Cache
from coild.model.api_reader import APIReader
from coild.model.journal_file import JournalFile
from coild.model.pod_network import PodNetwork
from coild.neutron.binding import Binding
from coild.neutron.bindings import Bindings
from coild.neutron.handoffs import PodHandoffs
from coild.neutron.journal import PortJournal
from coild.neutron.ledger import PortLedger
from coild.neutron.report import NeutronMetrics, PortCollector
from coild.neutron.rule_follower import RuleFollower
from coild.neutron.source import NeutronSource
from coild.neutron.unplugging import Unplugging
from coild.neutron.wiring import NeutronWiring
from coild.settings import Settings

ENCAPSULATION_BYTES: Final = 70
"""VXLAN over IPv6, the most that an overlay usually takes: of an MTU that nobody has told."""
ETHERNET_MTU: Final = 1500


@dataclass(frozen=True, kw_only=True)
class NeutronDeps:
    """What the parts depend on.

    `pods` are those of this node. `builtin` are the bindings of this process by the type of their ports; `mtu` is for
    ports whose MTU nobody tells, in bytes. `wall` is the time of day in seconds since 1970.
    """

    client: ApiClient
    pods: Cache[Pod]
    network: PodNetwork
    builtin: Mapping[str, Binding]
    journal: PortJournal
    mtu: int
    random: Callable[[], float]
    log: FilteringBoundLogger
    wall: Callable[[], float] = time.time
    owner: int = 0


class NeutronIpam:
    """One per process."""

    def __init__(self, settings: Settings, deps: NeutronDeps) -> None:
        log = deps.log
        metrics = NeutronMetrics()
        self.ledger = PortLedger(deps.journal, wall=deps.wall, log=log)
        self.bindings = Bindings(
            settings.neutron_binding_dir,
            deps.builtin,
            timeout=settings.neutron_bind_timeout,
            observe=metrics.bound,
            log=log,
            owner=deps.owner,
        )
        self.handoffs = PodHandoffs(
            deps.pods,
            APIReader(deps.client, log),
            node=settings.node_name,
            observe_handoff=metrics.handoff_waited,
            observe_active=metrics.active_waited,
        )
        self.unplugging = Unplugging(self.ledger, self.bindings, random=deps.random, log=log)
        self.rules = RuleFollower(self.ledger, self.bindings, self.handoffs, random=deps.random, log=log)
        self.wiring = NeutronWiring(
            deps.network,
            ledger=self.ledger,
            bindings=self.bindings,
            handoffs=self.handoffs,
            rules=self.rules,
            active_timeout=settings.neutron_active_timeout,
            log=log,
        )
        self.source = NeutronSource(
            ledger=self.ledger,
            handoffs=self.handoffs,
            unplugging=self.unplugging,
            wiring=self.wiring,
            mtu=deps.mtu,
            compat_calico=settings.compat_calico,
            collectors=(PortCollector(self.ledger), *metrics.collectors()),
        )

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What is to run as long as the process, by name; once, after the source has recovered."""
        return {"port-unplugging": self.unplugging.run(), "port-rules": self.rules.run()}

    @property
    def trouble(self) -> str | None:
        """Why pods with ports of some type may not be plugged in; None if nothing is known that speaks against it."""
        return self.bindings.trouble


@contextmanager
def open_journal(settings: Settings, *, log: FilteringBoundLogger) -> Iterator[PortJournal]:
    """The journal, in a folder that is made if it is missing; one that cannot be made is told by the file."""
    path = settings.neutron_journal
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("no folder for the journal", journal=str(path), error=str(error))
    journal = PortJournal(JournalFile(path, log=log))
    try:
        yield journal
    finally:
        journal.close()


async def find_mtu(settings: Settings, network: HostNetwork) -> int:
    """The MTU in bytes of ports whose MTU nobody tells: that of the settings, or what fits through the uplink."""
    if settings.mtu:
        return settings.mtu
    try:
        uplink = (await network.uplink()).mtu
    except NetlinkError:
        uplink = ETHERNET_MTU
    return uplink - ENCAPSULATION_BYTES
