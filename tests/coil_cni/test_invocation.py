"""What of CNI_ARGS reaches coild."""

import pytest

from coil.neutron.port_arguments import KEYS
from coil_cni.error import CniError
from coil_cni.invocation import parse_invocation
from tests.coil_cni.edges import ENVIRON

POD = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=nginx-app-722l8"
PORT = {
    "PORT_UUID": "a28c7404-7495-4557-b7fc-3e293508dbc6",
    "IPV4": "10.0.0.15/16",
    "GW": "10.0.0.1",
    "PORT_TYPE": "midonet",
}


def pod_args(text: str, command: str = "ADD") -> dict[str, str]:
    environ = ENVIRON | {"CNI_ARGS": text, "CNI_COMMAND": command}
    invocation = parse_invocation({key.encode(): value.encode() for key, value in environ.items()})
    return {key: value for key, value in invocation.pod_args.items() if value and not key.startswith("K8S_")}


def pairs(separator: str, arguments: dict[str, str]) -> str:
    return separator.join(f"{key}={value}" for key, value in arguments.items())


@pytest.mark.parametrize("separator", [";", ","])
@pytest.mark.parametrize("between", [";", ","])
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_a_port_is_passed_on_whichever_way_its_keys_are_separated(separator: str, between: str, command: str) -> None:
    assert pod_args(POD + between + pairs(separator, PORT), command) == PORT


def test_coild_reads_every_key_that_is_passed_on() -> None:
    every = dict.fromkeys(KEYS, "x")
    assert pod_args(f"{POD};{pairs(';', every)}") == every


def test_a_pod_without_a_port_has_nothing_more_to_say() -> None:
    assert pod_args(POD) == {}


def test_commas_in_other_values_stay_where_they_are() -> None:
    assert pod_args(f"{POD};IgnoreUnknown=1;LABELS=a,b,c;PORT_UUID=u,MAC=m,x") == {"PORT_UUID": "u", "MAC": "m,x"}


@pytest.mark.parametrize("more", ["PORT=x", "IPV4", "IPV4=a=b", "PORT_UUID=u,IPV4", "port_uuid=u"])
def test_what_is_no_pair_or_no_known_key_is_refused(more: str) -> None:
    with pytest.raises(CniError):
        pod_args(f"{POD};{more}")
