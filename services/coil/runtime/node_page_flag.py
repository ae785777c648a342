"""The flag that coild and `coil-node-dump` have in common."""

from coil.runtime.flag import Endpoint, Group, flag, parse_optional_endpoint


def node_page_flag() -> Endpoint | None:
    """Where coild serves the page of its node; `coil-node-dump`, which runs beside it, reads that."""
    return flag(
        "127.0.0.1:9383",
        parse=parse_optional_endpoint,
        env="COIL_INSPECT_PAGE_ADDR",
        group=Group.INSPECTION,
        help="address of the node's page for browsers, which refuse port 6666; without a host, every address; off for "
        "none",
    )
