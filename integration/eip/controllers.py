"""The egress-controllers of the stage: one, and for some tests a second that stands by."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from integration.apiserver.egress_world import NAME, STOP_TIMEOUT, EgressReplica
from integration.cluster.control_plane import ControlPlane
from integration.cluster.process import Process
from integration.deployment import CLUSTER_NETWORKS_FLAG
from integration.patience import wait_until
from integration.walk.recording import Recording


class Controllers:
    """Starts the first, and returns when it is ready. They run on the machine of the control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._first = EgressReplica(plane, NAME, CLUSTER_NETWORKS_FLAG)
        self._second: EgressReplica | None = None
        self._first.service.wait_ready()

    @contextmanager
    def pair(self) -> Iterator["Controllers"]:
        """A second one as long as the block lasts; after it the first is there again, whatever has happened to it."""
        self._second = self._second or EgressReplica(self.plane, f"{NAME}-2", CLUSTER_NETWORKS_FLAG)
        try:
            self.restore()
            yield self
        finally:
            self.restore()
            self._first.restore()
            self._second.service.process.stop(timeout=STOP_TIMEOUT)

    @contextmanager
    def traced(self, recording: Recording) -> Iterator[Process]:
        """One whose calls are noted, leading, in the place of the first as long as the block lasts."""
        self._first.service.process.stop(timeout=STOP_TIMEOUT)
        replica = EgressReplica(self.plane, f"{NAME}-traced", CLUSTER_NETWORKS_FLAG, recording=recording)
        try:
            replica.service.wait_ready()
            wait_until(replica.leads, what="the controller that is traced leads")
            yield replica.service.process
        finally:
            replica.service.process.stop(timeout=STOP_TIMEOUT)
            self._first.restore()

    def leader(self) -> EgressReplica:
        """Who leads, once somebody does, and nobody else says so."""
        found: list[EgressReplica] = []

        def leads() -> bool:
            found[:] = [replica for replica in self._replicas() if replica.leads()]
            return len(found) == 1

        wait_until(leads, what="one of the controllers leads")
        return found[0]

    def standby(self) -> EgressReplica:
        """The other one."""
        leader = self.leader()
        return next(replica for replica in self._replicas() if replica is not leader)

    def restore(self) -> None:
        """All alive, awake and ready; the API server asks the last one for its reviews."""
        for replica in self._replicas():
            replica.service.process.send_signal(signal.SIGCONT)
            replica.restore()

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and last lines of what each has logged."""
        for replica in self._replicas():
            with suppress(OSError):
                yield replica.service.process.log.stem, replica.service.process.tail()

    def _replicas(self) -> list[EgressReplica]:
        return [replica for replica in (self._first, self._second) if replica is not None]
