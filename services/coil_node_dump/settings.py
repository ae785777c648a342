"""What `coil-node-dump` may be told."""

from dataclasses import dataclass

from coil.page.node_dump import Part
from coil.runtime.flag import Endpoint, Group, flag, kind, parse_endpoint, parse_integer, parse_period
from coil.runtime.node_page_flag import node_page_flag

_ALL = ",".join(part for part in Part if part is not Part.METRICS)


@kind(",".join(Part))
def _parse_parts(text: str) -> frozenset[Part]:
    try:
        return frozenset(map(Part, text.split(",")))
    except ValueError:
        raise ValueError(f"some of {', '.join(Part)}, separated by commas") from None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`time_limit` is in seconds."""

    parts: frozenset[Part] = flag(_ALL, parse=_parse_parts, group=Group.INSPECTION, help="what to read")
    entries: int = flag(
        "20000",
        parse=parse_integer(1, 1_000_000),
        group=Group.INSPECTION,
        help="how many entries of each kind of a namespace are printed",
    )
    table_bytes: int = flag(
        "8388608",
        parse=parse_integer(0, 1 << 30),
        group=Group.INSPECTION,
        help="nftables beyond so many bytes are printed without the elements of sets",
    )
    time_limit: float = flag(
        "20s", parse=parse_period, group=Group.INSPECTION, help="what has not been begun by then is left out"
    )
    metrics_addr: Endpoint = flag(
        "127.0.0.1:9384",
        parse=parse_endpoint,
        group=Group.INSPECTION,
        help="where the program beside this one serves its metrics; without a host, 127.0.0.1",
    )
    inspect_page_addr: Endpoint | None = node_page_flag()  # noqa: RUF009 - a flag's value cannot be changed
