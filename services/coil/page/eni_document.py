"""The addresses of one node in a VPC: its network interfaces, their ranges, and what is out of each."""

from datetime import datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from coil.page.document import Document
from coil.page.node_document import AddressCounts, AddressState


class RangeDocument(Document, frozen=True, kw_only=True):
    """A secondary address (/32) or a prefix. What is `withdrawn` is on its way back to EC2, and nobody gets it."""

    network: IPv4Network | IPv6Network
    withdrawn: bool = False


class EniAddressDocument(Document, frozen=True, kw_only=True):
    """An address that is allocated or cooling. Who has it, as far as is known."""

    address: IPv4Address | IPv6Address
    state: AddressState
    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    interface: str | None = None
    """In the pod."""
    since: datetime | None = None
    until: datetime | None = None
    """When it has cooled down."""

    @property
    def pod_text(self) -> str | None:
        """`namespace/pod`; None when it is not known."""
        return f"{self.namespace}/{self.pod}" if self.pod else None


class InterfaceDocument(Document, frozen=True, kw_only=True):
    """`addresses.free` are warm: they would be given at once. Withheld are those of an interface whose link is not up,
    and of ranges that are withdrawn. `used` has the addresses that are allocated or cooling; the rest are not listed.
    """

    id: str
    mac: str
    device_number: int
    subnet: str
    primary: IPv4Address
    """The interface's own, which no pod gets."""
    up: bool
    addresses: AddressCounts
    ranges: tuple[RangeDocument, ...] = ()
    used: tuple[EniAddressDocument, ...] = ()


class EniNodeDocument(Document, frozen=True, kw_only=True):
    """`shortage` is why no more addresses can be had now; `waiting` how many pods wait for one. `lost` are pods'
    addresses that EC2 has not for this node any more.
    """

    node: str
    at: datetime
    addresses: AddressCounts
    shortage: str | None = None
    waiting: int = 0
    interfaces: tuple[InterfaceDocument, ...] = ()
    lost: tuple[EniAddressDocument, ...] = ()
