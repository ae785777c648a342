"""What is decided where the parts are put together: the region, the journal's folder, and when STATUS fails."""

import random
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from coil.aws.call_metrics import Ec2CallMetrics
from coil.aws.metadata import InstanceIdentity, InstanceMetadata, MetadataError, MetadataInterface
from coil.eni.interface import InterfaceId
from coil.kernel.link import MacAddress
from coil.podnet.plan import LINK_LOCAL, RoutePolicy
from coil.runtime.flag import parse_settings
from coild.eni.eni_ipam import EniDeps, EniIpam, find_region, open_journal
from coild.eni.store import NOT_KNOWN
from coild.pods.veth import VethWiring
from coild.settings import Settings
from tests.coil.eni.vpc import interface
from tests.coild.eni.node import LOG, POD, loop_time
from tests.coild.eni.test_journal import CHECKPOINT
from tests.coild.memory_network import Kernel, MemoryNetwork
from tests.coild.scene import ListRecorder, key

RNG = random.Random(1)
IDENTITY = InstanceIdentity(
    instance_id=cast(Any, "i-1"),
    instance_type="m5.large",
    region="eu-west-1",
    zone="eu-west-1a",
    account="1",
    mac=MacAddress("02:00:00:00:00:00"),
)


class Metadata:
    """Answers after so many failures."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def identity(self) -> InstanceIdentity:
        if self.failures > 0:
            self.failures -= 1
            raise MetadataError("no answer")
        return IDENTITY

    async def interfaces(self) -> list[MetadataInterface]:
        raise NotImplementedError

    async def end_notice(self) -> str | None:
        raise NotImplementedError


def settings(*flags: str) -> Settings:
    arguments = ["--address-source=aws-eni", "--cluster-name=one", *flags]
    return parse_settings(Settings, arguments, {"COIL_NODE_NAME": "node-1"}, program="coild", about="")


async def region(metadata: InstanceMetadata, **known: Any) -> str:
    return await find_region(metadata, known.get("checkpoint"), rng=RNG, log=LOG)


async def test_the_metadata_service_says_in_which_region_this_is() -> None:
    assert await region(Metadata(0), checkpoint=CHECKPOINT) == "eu-west-1"


async def test_a_node_that_was_here_before_does_not_wait_for_it() -> None:
    begun = loop_time()
    assert await region(Metadata(10**6), checkpoint=CHECKPOINT) == CHECKPOINT.region
    assert loop_time() == begun


async def test_a_new_node_waits_for_it() -> None:
    assert await region(Metadata(5)) == "eu-west-1"


async def test_the_journals_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "coil" / "eni.journal"
    journal = open_journal(settings(f"--journal={path}"), log=LOG)
    journal.note_checkpoint(CHECKPOINT)
    journal.resume({})
    assert open_journal(settings(f"--journal={path}"), log=LOG).checkpoint == CHECKPOINT


async def test_a_folder_that_cannot_be_made_is_told_and_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("a file")
    with capture_logs() as lines:
        journal = open_journal(settings(f"--journal={tmp_path / 'lib' / 'eni.journal'}"), log=LOG)
        journal.resume({})
    assert lines
    assert journal.checkpoint is None


@pytest.fixture
def ipam(tmp_path: Path) -> EniIpam:
    """Nothing of it runs."""
    known = settings(f"--journal={tmp_path / 'journal'}")
    network = MemoryNetwork(Kernel())
    unused = cast(Any, None)
    return EniIpam(
        known,
        EniDeps(
            client=unused,
            network=network,
            veth=VethWiring(network, mtu=1500, gateways=LINK_LOCAL, policy=RoutePolicy(rule_priority=None), log=LOG),
            kernel=unused,
            ec2=unused,
            ec2_metrics=Ec2CallMetrics(),
            metadata=Metadata(0),
            journal=open_journal(known, log=LOG),
            recorder=ListRecorder(),
            stopping=lambda: False,
            rng=RNG,
            log=LOG,
        ),
    )


async def test_status_fails_only_where_there_are_no_pods_that_would_suffer(ipam: EniIpam) -> None:
    def told() -> tuple[str | None, str | None]:
        return ipam.obstacle, ipam.status

    assert told() == (NOT_KNOWN, NOT_KNOWN)
    ipam.store.update([interface(0, "10.0.0.10/32")], up=[InterfaceId("eni-0")])
    assert told() == (None, None)
    await ipam.store.take(key("c1"), POD, deadline=0.0)
    ipam.store.shortage = "subnet-1 has no free address"
    assert told() == ("subnet-1 has no free address", None)
    ipam.store.release(key("c1"))
    assert told() == ("subnet-1 has no free address", "subnet-1 has no free address")


async def test_all_its_metrics_can_be_registered_together(ipam: EniIpam) -> None:
    registry = CollectorRegistry(auto_describe=True)
    for collector in ipam.source.metrics():
        registry.register(collector)
    assert registry.get_sample_value("coil_node_eni_total_ip_addresses") == 0
