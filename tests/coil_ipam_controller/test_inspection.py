"""Where the controller is looked at."""

from coil.runtime.flag import Endpoint, parse_settings
from coil_ipam_controller.settings import Settings


def parse(*arguments: str) -> Settings:
    return parse_settings(Settings, arguments, {}, program="coil-ipam-controller", about="")


def test_where_it_is_by_default() -> None:
    assert parse().inspect_addr == Endpoint("127.0.0.1", 9388)
    assert parse().inspect_history == 3600


def test_other_places() -> None:
    assert parse("--inspect-addr=off").inspect_addr is None
    assert parse("--inspect-addr=0.0.0.0:80").inspect_addr == Endpoint("0.0.0.0", 80)
    assert parse("--inspect-history=24h").inspect_history == 86400
