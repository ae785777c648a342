"""Egress NAT as a library: the two ends of Foo-over-UDP tunnels, in any network namespace.

    client.ClientNetwork    a client's namespace is made what a `ClientSpec` says
    router.RouterNetwork    a router's namespace: set up once, then clients come and go
    NAT_ERRORS              what the methods of both raise

Place in the flow: `coil.egress` plans, this room reads what the kernel has, and applies the difference through
`coil.netlink` and `coil.nft`. docs/nat.md tells how to use it, `integration/nat_example.py` is a whole network of it.

Invariant: the event loop's thread never waits for the kernel, and never changes its namespace.
"""

from typing import Final

from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError

NAT_ERRORS: Final = (NetlinkError, NftError)
"""For an `except`: a refusal of the kernel, or one of nftables. After any of them the same call may be repeated: every
method is idempotent.
"""
