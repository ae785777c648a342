"""What a router pod is told by its Deployment."""

from ipaddress import ip_address

import pytest

from coil.egress.client_pod import EgressRef
from coil.kernel.family import IPAddress
from coil.runtime.flag import Endpoint, parse_settings
from coil_egress_agent.egress.settings import Settings, parse_addresses

ENVIRONMENT = {
    "COIL_POD_NAMESPACE": "internet",
    "COIL_EGRESS_NAME": "nat",
    "COIL_POD_ADDRESSES": "10.1.2.3,fd00::3",
}


def parse(*arguments: str, **environment: str) -> Settings:
    return parse_settings(Settings, arguments, ENVIRONMENT | environment, program="coil-egress-agent", about="")


def test_defaults_are_those_of_coil() -> None:
    settings = parse()
    assert settings.egress == EgressRef("internet", "nat")
    assert settings.addresses == (ip_address("10.1.2.3"), ip_address("fd00::3"))
    assert (settings.metrics_addr, settings.health_addr) == (Endpoint("", 8080), Endpoint("", 8081))
    assert settings.router_spec.policy.port == 5555
    assert settings.kubeconfig is None


def test_flags() -> None:
    settings = parse("--egress-port=6666", "--health-addr=127.0.0.1:0")
    assert settings.router_spec.policy.port == 6666
    assert settings.router_spec.addresses == settings.addresses
    assert settings.health_addr == Endpoint("127.0.0.1", 0)


@pytest.mark.parametrize("name", ENVIRONMENT)
@pytest.mark.parametrize("text", ["", "Not A Name"])
def test_what_is_no_name_or_address_is_a_mistake(name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(**{name: text})
    assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("10.1.2.3", (ip_address("10.1.2.3"),)),
        ("fd00::3, 10.1.2.3", (ip_address("fd00::3"), ip_address("10.1.2.3"))),
    ],
)
def test_addresses(text: str, addresses: tuple[IPAddress, ...]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "10.1.2.3,", "10.1.2.3,10.1.2.4", "10.1.2.3/24", "10.1.2.3 fd00::3"])
def test_what_are_no_addresses_of_a_pod(text: str) -> None:
    with pytest.raises(ValueError, match="one of each family"):
        parse_addresses(text)
