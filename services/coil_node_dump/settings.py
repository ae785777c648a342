"""What `coil-node-dump` may be told."""

from dataclasses import dataclass

from coil.page.node_dump import Part
from coil.runtime.flag import Endpoint, flag, parse_integer, parse_period
from coil.runtime.settings import node_page_flag


def _parse_parts(text: str) -> frozenset[Part]:
    try:
        return frozenset(map(Part, text.split(",")))
    except ValueError:
        raise ValueError(f"some of {', '.join(Part)}, separated by commas") from None


@dataclass(frozen=True, kw_only=True)
class Settings:
    parts: frozenset[Part] = flag(
        ",".join(Part), parse=_parse_parts, help=f"what to read, separated by commas: {', '.join(Part)}"
    )
    entries: int = flag(
        "20000", parse=parse_integer(1, 1_000_000), help="how many entries of each kind are told of a namespace"
    )
    table_bytes: int = flag(
        "8388608", parse=parse_integer(0, 1 << 30), help="nftables beyond so many bytes come without elements of sets"
    )
    time_limit: float = flag("20s", parse=parse_period, help="what has not been read by then is left out")
    inspect_page_addr: Endpoint | None = node_page_flag()  # noqa: RUF009 - a flag's value cannot be changed
