"""Why a pod cannot be plugged into its port of a network, each with a sentence that says what to look at.

`coild.neutron` raises them, and `coild.cni.service` has the CNI error code of each (docs/neutron.md has the table).
Whatever was begun is undone when one of them is raised, unless it says otherwise.
"""


class PortError(Exception):
    """Any of these failures."""


class HandoffUnreadableError(PortError):
    """The pod's annotation names a port in a way that cannot be read, or names that of another pod."""


class PortGoneError(PortError):
    """The port that the pod was to have has been replaced by another one, or the annotation was taken away."""


class PortInUseError(PortError):
    """Another attachment of this node has the port."""


class PortTypeUnknownError(PortError):
    """Nothing on this node plugs in ports of that type."""


class BindError(PortError):
    """The port was not plugged in, or not unplugged.

    Unless `undone`, something of it may be left, so that it has to be unplugged before the port is used again.
    """

    def __init__(self, message: str, *, undone: bool = True) -> None:
        super().__init__(message)
        self.undone = undone


class BindTimeoutError(BindError):
    """What was to be done took longer than it may."""


class PortNotActiveError(PortError):
    """The port is plugged in, but Neutron has not reported it as ACTIVE in time."""


class PodForbiddenError(PortError):
    """The API server does not let coild read the pods of this node."""
