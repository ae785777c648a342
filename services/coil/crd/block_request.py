"""BlockRequest: a node's question for a block, and the controller's answer in its status.

The answer has one rule, `BlockRequest.outcome`: any Failed=True is a refusal that carries its reason; else
Complete=True is a grant; else the request is pending. A name in the status alone is no answer: the controller
writes down which block it is about to create before it creates it.
"""

from dataclasses import dataclass
from enum import StrEnum

from coil.crd.meta import Condition, ObjectMeta, Struct
from coil.crd.names import GROUP, VERSION, BlockName, NodeName, PoolName, RequestUid
from coil.crd.resource import Resource


class ConditionType(StrEnum):
    COMPLETE = "Complete"
    FAILED = "Failed"


class RefusalReason(StrEnum):
    """Why there is no block. Other controllers may write other reasons: compare, never parse into this."""

    OUT_OF_BLOCKS = "out of blocks"
    """The pool is exhausted, or is being deleted."""
    NO_SUCH_POOL = "no such pool"
    INVALID_POOL = "invalid pool"
    NO_SUCH_NODE = "no such node"
    INVALID_NODE = "invalid node"
    NO_BLOCK_NAMED = "no block named"
    """The request is complete, but its status names no block: a faulty controller wrote it."""


class BlockRequestSpec(Struct, frozen=True, kw_only=True):
    node_name: NodeName
    pool_name: PoolName


class BlockRequestStatus(Struct, frozen=True, kw_only=True):
    address_block_name: str = ""
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """No answer yet."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The named block was created for this request."""

    block: BlockName


@dataclass(frozen=True, slots=True)
class Refused:
    """There will be no block for this request; asking again later is a new request."""

    reason: str
    message: str


Outcome = Pending | Granted | Refused


class BlockRequest(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: BlockRequestSpec
    status: BlockRequestStatus = BlockRequestStatus()

    @property
    def uid(self) -> RequestUid:
        return RequestUid(self.metadata.uid)

    def outcome(self) -> Outcome:
        """The answer so far. Refusals win, in whatever order the conditions stand."""
        held = {condition.type: condition for condition in self.status.conditions if condition.status == "True"}
        if failed := held.get(ConditionType.FAILED):
            return Refused(failed.reason or "failed", failed.message)
        if ConditionType.COMPLETE not in held:
            return Pending()
        if not self.status.address_block_name:
            return Refused(RefusalReason.NO_BLOCK_NAMED, "the request is complete, but its status names no block")
        return Granted(BlockName(self.status.address_block_name))


BLOCK_REQUESTS: Resource[BlockRequest] = Resource(
    GROUP, VERSION, "blockrequests", "BlockRequest", namespaced=False, type=BlockRequest
)
