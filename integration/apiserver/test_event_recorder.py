"""Each program's account may write Events and count their repetitions.

A program does the second only half a minute after the first, which the clock of these tests passes at once.
"""

import asyncio
import itertools
import secrets
from contextlib import suppress

import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.crd.builtin import EVENTS
from coil.kube.client import KubeClient
from coil.reconcile.event_recorder import EventMetrics, EventRecorder, EventSubject
from coil.reconcile.event_series import REPEAT_SECONDS
from integration.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver

MESSAGE = "an Event of a test"
WAIT_SECONDS = 60.0


@pytest.mark.parametrize("account", ["coild", "coil-ipam-controller", "coil-egress-controller", "coil-raven"])
async def test_an_event_that_is_repeated_is_patched(plane: ControlPlane, admin: KubeClient, account: str) -> None:
    # Of a cluster kind: its Events are in the namespace default, the only one in which each of these may write.
    subject = EventSubject("coil.cybozu.com/v2", "AddressPool", f"pool-{secrets.token_hex(3)}")

    # Whenever it is asked, the pause between two writes has passed.
    ticks = itertools.count(0.0, REPEAT_SECONDS)

    async def counts() -> list[int]:
        events = await admin.list(EVENTS, namespace="default")
        return [event.count for event in events if event.involved_object.name == subject.name]

    async with KubeClient.connect(plane.kubeconfig_for(account)) as client:
        metrics = EventMetrics(CollectorRegistry())
        recorder = EventRecorder(
            client, component=account, log=structlog.get_logger(), metrics=metrics, clock=lambda: next(ticks)
        )
        writing = asyncio.create_task(recorder.run())
        try:
            for wanted in (1, 2):
                recorder.warn(subject, reason="Tested", message=MESSAGE)
                async with asyncio.timeout(WAIT_SECONDS):
                    while await counts() != [wanted]:  # noqa: ASYNC110 - the API server is asked
                        await asyncio.sleep(0.05)
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
