"""The settings of the ipam-controller: Coil's names and defaults."""

import subprocess
import sys
from pathlib import Path

import pytest

from coil.manager.claim import LeaderTiming
from coil.manager.election import parse_lease
from coil.runtime.flag import Endpoint, parse_settings
from coil_ipam_controller.settings import AWS_ENI, POOLS, Settings, parse_percentage


def parse(*arguments: str, **environment: str) -> Settings:
    return parse_settings(Settings, arguments, environment, program="coil-ipam-controller", about="")


def test_defaults() -> None:
    settings = parse()
    assert settings.metrics_addr == Endpoint("127.0.0.1", 9386)
    assert settings.health_addr == Endpoint("127.0.0.1", 9387)
    assert settings.gc_interval == 3600
    assert settings.kubeconfig is None
    assert settings.lease_duration == LeaderTiming()
    assert (settings.node_grace, settings.dead_node_after, settings.pool_nearly_full) == (15, 600, 90)


def test_given_values() -> None:
    assert parse("--gc-interval=5m").gc_interval == 300
    assert parse("--node-grace=1m").node_grace == 60
    assert parse("--dead-node-after=1h").dead_node_after == 3600
    assert parse("--pool-nearly-full=75%").pool_nearly_full == 75
    assert parse(KUBECONFIG="/a").kubeconfig == Path("/a")
    assert parse("--kubeconfig", "/b", KUBECONFIG="/a").kubeconfig == Path("/b")
    assert parse("--lease-duration=30s").lease_duration.renew == 18


@pytest.mark.parametrize("text", ["4s", "0", "5500ms", "x"])
def test_leases_that_no_election_can_keep(text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        parse_lease(text)


@pytest.mark.parametrize("text", ["0", "101%", "-1", "90.5%", "%", "", "90 %", "\u0665%"])
def test_percentages_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="from 1 to 100"):
        parse_percentage(text)


def test_where_addresses_are_from() -> None:
    assert parse().address_source == POOLS
    settings = parse("--address-source=aws-eni", "--cluster-name=blue", AWS_REGION="eu-west-1")
    assert (settings.address_source, settings.cluster_name, settings.aws_region) == (AWS_ENI, "blue", "eu-west-1")


def test_interfaces_of_a_cluster_without_a_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse("--address-source=aws-eni")
    assert exit_.value.code == 2
    assert "--cluster-name must be given" in capsys.readouterr().err


def test_the_aws_library_is_loaded_where_it_is_needed_only() -> None:
    program = (
        "import sys, coil_ipam_controller.main; print('coil.aws.ec2' in sys.modules, 'aiobotocore' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["False", "False"]
