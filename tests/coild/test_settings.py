"""What coild can be told, and what it refuses to be told at once."""

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from coil.eni.warm_pool import WarmTargets
from coil.kernel.nft_table import PortChoice
from coil.runtime.flag import parse_settings
from coil_cni.plugin import TIMEOUT
from coild.eni.settings import EniSettings, read_eni_settings
from coild.settings import ENI_JOURNAL, NEUTRON_JOURNAL, PLUGIN_SECONDS, POOL_JOURNAL, AddressSourceName, Settings

NEUTRON = ("--address-source=neutron", "--enable-egress=false")
ENI = ("--address-source=aws-eni", "--cluster-name=one")


def parse(*arguments: str, **environment: str) -> Settings:
    return parse_settings(Settings, arguments, {"COIL_NODE_NAME": "node-1"} | environment, program="coild", about="")


def test_pools_are_the_default() -> None:
    settings = parse()
    assert settings.address_source is AddressSourceName.POOLS
    assert settings.journal == POOL_JOURNAL


def test_the_defaults_of_interfaces() -> None:
    settings = parse(*ENI)
    assert read_eni_settings(settings) == EniSettings(cluster="one", targets=WarmTargets(interfaces=1))
    assert settings.eni_journal == ENI_JOURNAL


def test_the_journal_can_be_elsewhere_or_nowhere() -> None:
    assert parse(*ENI, "--journal=/data/journal").eni_journal == Path("/data/journal")
    assert parse(*ENI, "--journal=").eni_journal is None


def test_the_known_names_are_variables() -> None:
    settings = parse(
        "--address-source=aws-eni",
        CLUSTER_NAME="two",
        WARM_ENI_TARGET="2",
        WARM_IP_TARGET="5",
        MINIMUM_IP_TARGET="10",
        WARM_PREFIX_TARGET="1",
        MAX_ENI="4",
        ENABLE_PREFIX_DELEGATION="true",
        AWS_VPC_K8S_CNI_EXTERNALSNAT="true",
        AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS="172.16.0.0/12, 192.168.0.0/16",
        ENABLE_IPv6="true",
    )
    assert read_eni_settings(settings) == EniSettings(
        cluster="two",
        targets=WarmTargets(interfaces=2, ips=5, minimum=10, prefixes=1, max_interfaces=4),
        prefixes=True,
        version=6,
        external_snat=True,
        excluded=(IPv4Network("172.16.0.0/12"), IPv4Network("192.168.0.0/16")),
    )


def test_what_many_manifests_set_has_no_effect() -> None:
    settings = parse(
        *ENI, WARM_PREFIX_TARGET="1", MAX_ENI="0", WARM_IP_TARGET="", MINIMUM_IP_TARGET="0", ENABLE_IPv4="true"
    )
    assert read_eni_settings(settings).targets == WarmTargets(interfaces=1)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("fully-random", PortChoice.FULLY_RANDOM),
        ("plain", PortChoice.RANDOM),
        ("off", PortChoice.OWN),
        ("prng", PortChoice.FULLY_RANDOM),
        ("hashrandom", PortChoice.RANDOM),
        ("none", PortChoice.OWN),
    ],
)
def test_source_ports_of_translated_connections(text: str, ports: PortChoice) -> None:
    assert read_eni_settings(parse(*ENI)).snat_ports is PortChoice.FULLY_RANDOM
    assert read_eni_settings(parse(*ENI, f"--randomize-snat={text}")).snat_ports is ports
    assert read_eni_settings(parse(*ENI, AWS_VPC_K8S_CNI_RANDOMIZESNAT=text)).snat_ports is ports


def test_groups_and_metadata_of_pods() -> None:
    settings = read_eni_settings(parse(*ENI, "--security-groups=sg-1,sg-2", "--allow-pod-metadata-access"))
    assert settings.groups == ("sg-1", "sg-2")
    assert settings.metadata_access


def test_the_defaults_of_ports() -> None:
    settings = parse(*NEUTRON)
    assert settings.address_source is AddressSourceName.NEUTRON
    assert settings.neutron_journal == NEUTRON_JOURNAL
    assert settings.neutron_binding_dir == Path("/usr/libexec/kuryr")
    assert (settings.neutron_bind_timeout, settings.neutron_active_timeout) == (10, 30)
    assert parse(*NEUTRON, "--neutron-active-timeout=0").neutron_active_timeout == 0
    assert parse(*NEUTRON, "--journal=/data/journal").neutron_journal == Path("/data/journal")
    assert parse(*NEUTRON, "--journal=").neutron_journal is None


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--enable-ipam=false", "--enable-egress=false"), "nothing to do"),
        ((*ENI, "--randomize-snat=yes"), "fully-random, plain or off"),
        ((*ENI, "--enable-ipam=false"), "another plugin"),
        ((*ENI, "--route-sync"), "the VPC routes"),
        ((*ENI, "--clear-routes-on-shutdown"), "no routes are exported"),
        ((*ENI, "--warm-addresses=3"), "WARM_IP_TARGET"),
        ((*ENI, "--host-address=node-ip"), "169.254.1.1"),
        ((*ENI, "--pod-table-id=10001"), "the table of an interface"),
        (("--address-source=aws-eni",), "--cluster-name"),
        ((*ENI, "--enable-ipv4=true", "--enable-ipv6"), "one family"),
        ((*ENI, "--enable-ipv4=false"), "no address"),
        ((*NEUTRON, "--enable-egress"), "no egress NAT"),
        (("--address-source=neutron", "--enable-ipam=false"), "another plugin"),
        ((*NEUTRON, "--route-sync"), "Neutron's routers"),
        ((*NEUTRON, "--clear-routes-on-shutdown"), "no routes are exported"),
        ((*NEUTRON, "--warm-addresses=3"), "a port is the pod's"),
        ((*NEUTRON, "--host-address=node-ip"), "that of their subnet"),
        ((*NEUTRON, "--neutron-binding-dir=bin"), "an absolute path"),
        ((*NEUTRON, "--neutron-active-timeout=40s"), "60 s together, and an ADD has 60 s"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    flags: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(*flags)
    assert exit_.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag",
    [
        "--address-source=gcp",
        "--warm-ip-target=-1",
        "--max-eni=many",
        "--exclude-snat-cidrs=10.0.0.1/8",
        "--exclude-snat-cidrs=fd00::/8",
        "--ec2-endpoint=ec2.example.com",
        "--enable-ipv4=maybe",
        "--neutron-bind-timeout=0",
    ],
)
def test_values_that_are_none(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(flag)
    assert flag.partition("=")[2] in capsys.readouterr().err


def test_an_add_has_as_long_as_the_plugin_gives_it() -> None:
    assert PLUGIN_SECONDS == TIMEOUT
