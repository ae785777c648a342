"""coil-egress-agent: the far end of the clients' tunnels. Run by `python -m coil_egress_agent`, one per router pod.

Wires the parts together and nothing else. Nothing is waited for here: a kernel without tunnels, an API server that is
unavailable or a missing permission keep the pod unready, with the reason at `/readyz`, until they pass. The process is
root in its container and has one capability, CAP_NET_ADMIN.
"""

import asyncio
import os
import sys
from functools import partial

from coil.crd.egress import EGRESSES, Egress
from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES, EgressClientSlice
from coil.crd.names import LABEL_EGRESS
from coil.kube.client import KubeClient
from coil.manager.manager import Manager
from coil.nat.router import RouterNetwork
from coil.reconcile.cache import wait_synced
from coil.reconcile.queue import WorkQueue
from coil.runtime import former_flag
from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coil_egress_agent.egress.client_index import ClientCollector, ClientIndex
from coil_egress_agent.egress.nat_metric import NatCollector, NatReading
from coil_egress_agent.egress.peer_sync import (
    RETRY_BACKOFF,
    Change,
    DesiredPeers,
    EgressSettings,
    PeerMetrics,
    PeerSync,
)
from coil_egress_agent.egress.settings import Settings

NAME = "coil-egress-agent"


def main() -> int:
    settings = parse_settings(
        Settings,
        sys.argv[1:],
        os.environ,
        program=NAME,
        about="Ends the tunnels of an Egress's clients.",
        former=former_flag.EGRESS_AGENT,
    )
    return run(partial(assemble, settings), name=NAME, settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything; `/readyz` says what is missing."""
    log = process.log.bind(egress=str(settings.egress))
    stack = process.stack
    router = await stack.enter_async_context(RouterNetwork())
    kube = await stack.enter_async_context(KubeClient.connect(settings.kubeconfig))

    manager = Manager(process)
    egresses = manager.cache(
        kube.collection(EGRESSES, namespace=settings.namespace, fields=f"metadata.name={settings.name}")
    )
    # Listed from the store: a cached list may be older than what was seen before, and a client that it lacks would lose
    # its tunnel for a moment.
    slices = manager.cache(
        kube.collection(EGRESS_CLIENT_SLICES, namespace=settings.namespace, labels=f"{LABEL_EGRESS}={settings.name}")
    )
    index = ClientIndex(settings.addresses)
    egress_settings = EgressSettings(log=log)
    queue = WorkQueue("peers", metrics=manager.metrics, backoff=RETRY_BACKOFF)
    peers = PeerSync(
        router,
        DesiredPeers(
            spec=settings.router_spec,
            clients=index,
            settings=egress_settings,
            known=partial(wait_synced, [slices, egresses], log=log),
        ),
        queue=queue,
        resync_interval=settings.resync_interval,
        metrics=PeerMetrics(process.registry),
        log=log,
    )

    def note_slice(old: EgressClientSlice | None, new: EgressClientSlice | None) -> None:
        peers.look(index.observe(old, new))

    def note_egress(_old: Egress | None, new: Egress | None) -> None:
        match egress_settings.observe(new):
            case Change.SOURCE_PORT:
                peers.look_at_all()
            case Change.DESTINATIONS:
                peers.look_around()

    slices.subscribe(note_slice)
    egresses.subscribe(note_egress)
    ClientCollector(index, settings.egress, process.registry)
    reading = NatReading(router, log=log)
    NatCollector(reading, settings.egress, process.registry)

    process.add_readiness("peers", peers.missing)
    # Not runnables of the manager, which start when all caches are synced: all but the peers is set up before that.
    process.spawn("peer-sync", peers.run())
    process.spawn("nat-reading", reading.run(peers.is_set_up))
    # Entered last, so it is the first step of a stop: until it is over everything else works on.
    stack.push_async_callback(_drain, settings, process)


async def _drain(settings: Settings, process: Process) -> None:
    """Packets still arrive until every node has heard that this pod takes no more. After a failure there is no
    drain.
    """
    if process.failure is None:
        await asyncio.sleep(min(settings.drain, settings.stop_timeout / 2))
