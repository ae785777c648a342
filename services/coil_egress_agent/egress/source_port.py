"""The source port of the tunnels, as this router pod's own Egress says at the moment.

It is read here and not given as a flag, so that a change of it needs no new router pods, which would cost every client
its connections. An Egress that is gone leaves the last word: its router pods go with it.
"""

from structlog.typing import FilteringBoundLogger

from coil.crd.egress import Egress
from coil.egress.policy import SourcePort


class SourcePortSetting:
    """Told by an informer of the one Egress."""

    def __init__(self, *, log: FilteringBoundLogger) -> None:
        self.value = SourcePort.FIXED
        self._log = log

    def observe(self, new: Egress | None) -> bool:
        """Returns whether `value` has changed by it."""
        if new is None:
            return False
        value = SourcePort.AUTO if new.spec.fou_source_port_auto else SourcePort.FIXED
        if value is self.value:
            return False
        self.value = value
        self._log.info("the tunnels' source port changes", source_port=value.value)
        return True
