"""What the methods of this room raise: a refusal of the kernel, or one of nftables."""

from typing import Final

from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError

NAT_ERRORS: Final = (NetlinkError, NftError)
"""For an `except`. After any of them the same call may be repeated: every method is idempotent."""
