"""What an address is given to: one interface of one container, as CNI identifies it."""

from dataclasses import dataclass
from typing import NewType

ContainerId = NewType("ContainerId", str)


@dataclass(frozen=True, slots=True)
class AttachmentKey:
    """Compared as a whole: two interfaces of one container are two attachments."""

    container_id: ContainerId
    ifname: str
