"""What the manifests of Coil v2 say to its Go programs starts these.

The command lines are those of its `config/pod` and `config/default`, of several releases up to 2.15, and those of its
controller for router pods; some have the flags of klog and zap besides, which its documents leave out.
"""

from pathlib import Path
from typing import Any

import pytest

from coil.runtime import former_flag
from coil.runtime.flag import Endpoint, FormerFlag, parse_settings
from coil.runtime.log import LogFormat
from coil_egress_agent.egress.settings import Settings as RouterSettings
from coil_egress_controller.settings import Settings as EgressControllerSettings
from coil_ipam_controller.settings import Settings as IpamControllerSettings
from coild.settings import Settings as CoildSettings

ENVIRONMENT = {
    "COIL_NODE_NAME": "node-1",
    "COIL_POD_NAMESPACE": "internet",
    "COIL_POD_NAME": "coil-egress-controller-1",
    "COIL_EGRESS_NAME": "nat",
    "COIL_POD_ADDRESSES": "10.1.2.3,fd00::3",
}
PROGRAMS: dict[str, tuple[type[Any], tuple[FormerFlag, ...]]] = {
    "coild": (CoildSettings, former_flag.COILD),
    "coil-ipam-controller": (IpamControllerSettings, former_flag.IPAM_CONTROLLER),
    "coil-egress-controller": (EgressControllerSettings, former_flag.EGRESS_CONTROLLER),
    "coil-egress": (RouterSettings, former_flag.EGRESS_AGENT),
}
COMMANDS = """
coild --zap-stacktrace-level=panic --enable-ipam=true --enable-egress=true
coild --zap-stacktrace-level=panic
coild --compat-calico
coild --zap-stacktrace-level=panic --enable-ipam=false --enable-egress=true --pod-table-id=255 --protocol-id=2
coild --alsologtostderrthreshold=ERROR
coild --zap-stacktrace-level=panic --enable-ipam=false --enable-egress=true --pod-table-id=0 --protocol-id=2
coild --enable-ipam=false --enable-egress=true --enable-nft=true --pod-table-id=0 --protocol-id=2
coild --enable-ipam=false --pod-table-id=0 --protocol-id=2 --backend=nftables --enable-originating-only=true
coild --backend=iptables --register-from-main --socket=/run/coild.sock --egress-port=5555 --pod-rule-prio=2000
coild --metrics-addr=:9384 --health-addr=:9385 --export-table-id=119 --register-from-main=false -v=4
coild --update-interval=10m --route-sync --logtostderr --v=2 --vmodule=a=1 --zap-log-level=2
coil-ipam-controller --zap-stacktrace-level=panic
coil-ipam-controller --metrics-addr=:9386 --health-addr=:9387 --webhook-addr=:9443 --cert-dir=/certs --gc-interval=1h
coil-ipam-controller --enable-cert-rotation=true --enable-restart-on-cert-refresh=true --zap-encoder json
coil-egress-controller --zap-stacktrace-level=panic --backend=nftables
coil-egress-controller --metrics-addr=:9396 --health-addr=:9397 --webhook-addr=:9444 --egress-port=5555
coil-egress-controller --enable-cert-rotation --enable-restart-on-cert-refresh --gc-interval=1h0m0s --cert-dir=/certs
coil-egress --zap-stacktrace-level=panic
coil-egress --fou-port=5555 --backend=nftables
coil-egress --fou-port=5555 --enable-sport-auto=true --enable-nft --metrics-addr=:8080 --health-addr=:8081
coil-egress --enable-sport-auto
""".strip().splitlines()


def parse(command: str) -> Any:
    program, *arguments = command.split()
    settings, former = PROGRAMS[program]
    return parse_settings(settings, arguments, ENVIRONMENT, program=program, about="", former=former)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_programs_start(command: str) -> None:
    assert parse(command)


def test_what_has_a_meaning_here_is_heeded() -> None:
    assert parse("coil-egress --fou-port=5556").egress_port == 5556
    assert parse("coild --update-interval=10m").route_sync_interval == 600
    assert parse("coild --metrics-addr=:9384").metrics_addr == Endpoint("", 9384)
    assert parse("coild --socket=/run/coild.sock").socket == Path("/run/coild.sock")
    assert parse("coild --zap-encoder=console").log_format is LogFormat.TEXT
    assert parse("coild --zap-encoder=json").log_format is LogFormat.JSON


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("--zap-log-level=debug", "debug"),
        ("--zap-log-level=Info", "info"),
        ("--zap-log-level=warn", "warning"),
        ("--zap-log-level=panic", "error"),
        ("--zap-log-level=5", "debug"),
        ("--zap-devel", "debug"),
        ("--zap-devel=false", "info"),
        ("--zap-devel --zap-log-level=error", "error"),
        ("--log-level=warning --zap-log-level=error", "warning"),
    ],
)
def test_levels(flags: str, level: str) -> None:
    assert parse(f"coild {flags}").log_level == level


def test_what_has_none_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    parse("coild --zap-stacktrace-level=panic --log-level=info -v 4 --logtostderr --backend=iptables")
    assert capsys.readouterr().err == (
        "coild: ignored, without a meaning here: --zap-stacktrace-level, -v, --logtostderr, --backend\n"
    )
    parse("coild --zap-log-level=info")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("coild --zap-log-level=loud", 'coild: error: --zap-log-level: "loud" is not debug, info'),
        ("coild --zap-encoder=xml", 'coild: error: --zap-encoder: "xml" is not json or console'),
        ("coild --zap-log-level=0", '--zap-log-level: "0" is not'),
        ("coil-egress --fou-port=0", 'coil-egress: error: --fou-port: "0" is not a whole number from 1 to 65535'),
        ("coil-egress --register-from-main", "unrecognized arguments: --register-from-main"),
        ("coild --pod-table-id=0", "--pod-table-id=0 is no table"),
        ("coild --protocol-id=2", "--protocol-id=2 is a protocol of the kernel's"),
    ],
)
def test_a_mistake_in_one_is_refused(command: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse(command)
    assert exit_info.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_chained_coild_never_writes_routes_as_if_the_kernel_had() -> None:
    chained = parse("coild --enable-ipam=false --pod-table-id=0 --protocol-id=2")
    assert (chained.route_protocol, chained.route_policy.protocol) == (30, 30)
    assert parse("coild --protocol-id=31").route_protocol == 31


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_version(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse(f"{program} --version")
    assert exit_info.value.code == 0
    name, version = capsys.readouterr().out.split()
    assert name == program
    assert version[0].isdigit()


def test_they_are_not_among_the_flags_that_help_lists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("coild --help")
    assert "zap" not in capsys.readouterr().out
