"""The one rule by which a BlockRequest's status is read."""

import pytest

from coil.crd.block_request import (
    BlockRequest,
    BlockRequestSpec,
    BlockRequestStatus,
    Granted,
    Outcome,
    Pending,
    RefusalReason,
    Refused,
)
from coil.crd.meta import Condition, ObjectMeta
from coil.crd.names import BlockName, NodeName, PoolName

GRANTED = Granted(BlockName("default-0"))
REFUSED = Refused(RefusalReason.OUT_OF_BLOCKS, "all gone")


def complete(status: str = "True") -> Condition:
    return Condition(type="Complete", status=status)


def failed(status: str = "True") -> Condition:
    return Condition(type="Failed", status=status, reason="out of blocks", message="all gone")


@pytest.mark.parametrize(
    ("conditions", "outcome"),
    [
        ([], Pending()),
        ([complete("False")], Pending()),
        ([complete("Unknown"), failed("Unknown")], Pending()),
        ([complete()], GRANTED),
        ([complete(), failed("False")], GRANTED),
        ([failed("False"), complete()], GRANTED),
        ([failed()], REFUSED),
        ([complete(), failed()], REFUSED),
        ([failed(), complete()], REFUSED),
        ([complete("False"), failed()], REFUSED),
        ([Condition(type="Ready", status="True")], Pending()),
    ],
)
def test_outcome(conditions: list[Condition], outcome: Outcome) -> None:
    assert request("default-0", *conditions).outcome() == outcome


def test_a_grant_without_a_name_is_a_refusal() -> None:
    outcome = request("", complete()).outcome()
    assert isinstance(outcome, Refused)
    assert outcome.reason == RefusalReason.NO_BLOCK_NAMED


def test_a_refusal_without_a_reason_still_has_one() -> None:
    outcome = request("", Condition(type="Failed", status="True")).outcome()
    assert outcome == Refused("failed", "")


def request(block: str, *conditions: Condition) -> BlockRequest:
    return BlockRequest(
        metadata=ObjectMeta(name="req"),
        spec=BlockRequestSpec(node_name=NodeName("node1"), pool_name=PoolName("default")),
        status=BlockRequestStatus(address_block_name=block, conditions=conditions),
    )
