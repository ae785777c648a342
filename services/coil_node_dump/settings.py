"""What `coil-node-dump` may be told."""

from dataclasses import dataclass

from coil.runtime.flag import Endpoint, flag, parse_boolean, parse_integer, parse_optional_endpoint, parse_period


@dataclass(frozen=True, kw_only=True)
class Settings:
    pods: bool = flag("true", parse=parse_boolean, help="read the network namespaces of pods as well")
    entries: int = flag(
        "20000", parse=parse_integer(1, 1_000_000), help="how many entries of each kind are told of a namespace"
    )
    table_bytes: int = flag(
        "8388608", parse=parse_integer(0, 1 << 30), help="nftables beyond so many bytes come without elements of sets"
    )
    time_limit: float = flag("20s", parse=parse_period, help="what has not been read by then is left out")
    inspect_page_addr: Endpoint | None = flag(
        ":9383", parse=parse_optional_endpoint, env="COIL_INSPECT_PAGE_ADDR", help="coild's inspection page, or off"
    )
