"""Deletes interfaces that the cluster's nodes have made and that no instance has; `coil.eni.orphan` says which.

EC2 is asked for those that are unattached and have the cluster's tag. Right before a deletion it is asked once more: a
node may have taken its interface back meanwhile. Should it do so after that look, EC2 refuses the deletion.
"""

from typing import Final

from coil.aws.ec2 import Ec2
from coil.aws.error import Ec2Error, GoneError, InUseError, ThrottledError, UnavailableError
from coil.eni.interface import InterfaceId
from coil.eni.orphan import UNATTACHED, FoundInterface, OrphanWatch, may_be_orphan
from coil.eni.tag import CLUSTER_TAG, INSTANCE_TAG
from coil_ipam_controller.eni.view import Deps

DELETIONS: Final = 20
"""In one round at most: what has gone wrong in a thousand nodes is cleared up in an hour, beside their own calls."""


class OrphanCollector:
    """One for each term."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._view = deps.view
        self._log = deps.log
        self._watch = OrphanWatch(deps.view.cluster)

    async def round(self, ec2: Ec2) -> None:
        """Look, and delete what has long been nobody's. Raises Ec2Error; what was deleted until then is reported."""
        due = self._watch.observe(await self._look(ec2), clock=self._deps.clock(), now=self._deps.now())
        self._view.unattached = self._watch.unattached
        if due:
            await self._collect(ec2, due[:DELETIONS])

    async def _look(self, ec2: Ec2) -> list[FoundInterface]:
        found = await ec2.find_interfaces({CLUSTER_TAG: self._view.cluster}, status=UNATTACHED)
        return [FoundInterface(id=each.id, status=each.status, tags=each.tags) for each in found]

    async def _collect(self, ec2: Ec2, due: list[InterfaceId]) -> None:
        again = {each.id: each for each in await self._look(ec2) if may_be_orphan(each, self._view.cluster)}
        deleted: list[InterfaceId] = []
        failure: Ec2Error | None = None
        try:
            for interface in due:
                if (found := again.get(interface)) is None:
                    self._watch.forget(interface)
                    continue
                try:
                    await ec2.delete_interface(interface)
                except (GoneError, InUseError) as error:
                    self._log.info("interface is not an orphan any more", interface=interface, error=str(error))
                except (ThrottledError, UnavailableError):
                    raise
                except Ec2Error as error:
                    # One that cannot be deleted does not keep the others.
                    failure = error
                    self._watch.note_refusal(interface)
                    continue
                else:
                    deleted.append(interface)
                    instance = found.tags.get(INSTANCE_TAG, "")
                    self._log.warning("orphaned interface deleted", interface=interface, instance=instance)
                self._watch.forget(interface)
        finally:
            self._view.unattached = self._watch.unattached
            self._report(deleted)
        if failure is not None:
            raise failure

    def _report(self, deleted: list[InterfaceId]) -> None:
        if not deleted:
            return
        self._deps.metrics.deletions.inc(len(deleted))
        names = ", ".join(sorted(deleted))
        message = f"deleted network interfaces that were made for nodes and that no instance has: {names}"
        self._deps.recorder.note(self._deps.subject, reason="InterfacesCollected", message=message)
