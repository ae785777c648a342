"""The inspection page of coil-raven: what the process knows at this moment. Nobody is asked for it.

RavenView (the leader's term), Caches, RecentCalls, RecentEvents, Election ─► look ─► description ─► coil.page
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from coil.manager.election import Election
from coil.neutron.identity import ClusterId
from coil.openstack.recent_calls import RecentCalls
from coil.page.neutron_document import NeutronDocument
from coil.page.neutron_page import render_neutron_page
from coil.runtime.inspection import Inspection, start_inspection
from coil.runtime.process import Process
from coil_raven.caches import Caches
from coil_raven.description import RavenSnapshot, ServicesSnapshot, TermSnapshot, describe_raven
from coil_raven.load_balancing import LoadBalancing
from coil_raven.recent_events import RecentEvents
from coil_raven.settings import Settings
from coil_raven.view import RavenView, TermView


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What can be looked at. `load_balancing` is None without load balancers.

    `paused` says for how many seconds OpenStack is left alone.
    """

    cluster: ClusterId
    caches: Caches
    load_balancing: LoadBalancing | None
    view: RavenView
    paused: Callable[[], float]
    calls: RecentCalls
    events: RecentEvents

    def look(self, settings: Settings, *, replica: str, leads: bool, leader: str, at: datetime) -> RavenSnapshot:
        """Everything at one moment: references and copies of dictionaries, no call to anybody."""
        term = self.view.term
        return RavenSnapshot(
            replica=replica,
            leads=leads,
            leader=leader,
            at=at,
            cluster=self.cluster,
            supernets=settings.supernets,
            term=None if term is None or not leads else self._look_at(term),
            calls=self.calls.read(),
            paused=self.paused(),
            events=self.events.read(),
        )

    def _look_at(self, term: TermView) -> TermSnapshot:
        balancing, services = self.load_balancing, term.services
        return TermSnapshot(
            namespaces=self.caches.namespaces.items(),
            pods=self.caches.pods.items(),
            networks=dict(term.networks.present),
            ports=term.ports.known(),
            idle=term.ports.idle(),
            taken=term.maker.chosen(),
            services=None
            if balancing is None or services is None
            else ServicesSnapshot(
                services=balancing.services.items(),
                reports=services.balancers.reports(),
                floating_ips=services.exposed(),
            ),
        )


def start_raven_inspection(settings: Settings, process: Process, *, sources: Sources, election: Election) -> None:
    """Serve the page on the port of the settings until the process stops."""

    def look() -> Callable[[], NeutronDocument]:
        snapshot = sources.look(
            settings,
            replica=election.identity,
            leads=election.holds_lease(),
            leader=election.leader,
            at=datetime.now(UTC),
        )
        return partial(describe_raven, snapshot)

    inspection = Inspection(look, render_neutron_page)
    start_inspection(process, inspection, {"inspect": settings.inspect_addr}, log=process.log)
