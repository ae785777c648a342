"""CustomResourceDefinitions as documents (apiextensions.k8s.io/v1), the source of the chart's `crds` folder.

The schemas are structural. They refuse what is malformed, and by their rules (`x-kubernetes-validations`,
`coil.crd.pool_rule`) what contradicts itself; what needs other objects or arithmetic on addresses is
`coil.crd.pool_validation`'s business. Their properties are the fields of the structs, which a test holds them to.
"""

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, DEFAULT_BLOCK_SIZE_BITS, PoolConditionType
from coil.crd.block_request import BLOCK_REQUESTS, ConditionType
from coil.crd.definition import (
    AGE,
    RULES,
    Document,
    cel_rule,
    column,
    define,
    label_path,
    object_schema,
    observed_generation_schema,
)
from coil.crd.egress_schema import egress_client_slice_definition, egress_definition
from coil.crd.eip_schema import eip_definitions
from coil.crd.names import LABEL_NODE, LABEL_POOL
from coil.crd.pool_rule import (
    BLOCK_SIZE_RULES,
    IPV4_CIDR_LENGTH,
    IPV6_CIDR_LENGTH,
    MAX_SUBNETS,
    SPEC_RULES,
    SUBNET_RULES,
    SUBNETS_RULES,
)

UNCHANGED = "must not change"
_IPV4_CIDR = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$"
_IPV6_CIDR = r"^[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/[0-9]{1,3}$"


def address_pool_definition() -> Document:
    spec = object_schema(
        "What the pool consists of.",
        {
            "blockSizeBits": {
                "type": "integer",
                "format": "int32",
                "minimum": 0,
                "maximum": 128,
                "default": DEFAULT_BLOCK_SIZE_BITS,
                "description": "Size of the address blocks of this pool: each has 2^blockSizeBits addresses. "
                "Immutable.",
                RULES: BLOCK_SIZE_RULES,
            },
            "subnets": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_SUBNETS,
                "description": "Networks to carve blocks from, in this order. Existing entries are immutable; "
                "new ones go to the end. All entries have the same address families.",
                "items": object_schema(
                    "A network of either family, or one of each with equally many addresses.",
                    {
                        "ipv4": _network("IPv4", _IPV4_CIDR, "10.2.0.0/16", length=IPV4_CIDR_LENGTH),
                        "ipv6": _network("IPv6", _IPV6_CIDR, "fd01:203:405:607::/112", length=IPV6_CIDR_LENGTH),
                    },
                )
                | {RULES: SUBNET_RULES},
                RULES: SUBNETS_RULES,
            },
        },
        required=("subnets",),
    ) | {RULES: SPEC_RULES}
    return define(
        ADDRESS_POOLS,
        "A set of networks from which pods get their addresses, divided into blocks that belong to nodes.",
        {"spec": spec, "status": _address_pool_status()},
        required=("spec",),
        columns=[
            column(
                "BlockSize Bits",
                ".spec.blockSizeBits",
                "A block has 2^this addresses",
                type_="integer",
            ),
            column("Blocks", ".status.blocks.total", "Blocks that the pool can have", type_="integer"),
            column("Used Blocks", ".status.blocks.used", "Blocks that nodes have", type_="integer"),
            column("Addresses", ".status.addresses.total", "Addresses in all blocks", type_="integer"),
            column("Used Addresses", ".status.addresses.used", "Addresses in those blocks", type_="integer"),
            column("Ready", _condition_path(PoolConditionType.READY, "status"), "Whether it may give blocks"),
            column("Fill", _condition_path(PoolConditionType.FULL, "reason"), "Whether there are any left"),
            AGE,
        ],
        subresources={"status": {}},
    )


def _address_pool_status() -> Document:
    condition = object_schema(
        "One aspect of the pool.",
        {
            "type": {
                "type": "string",
                "minLength": 1,
                "description": "Ready: the pool may give blocks. Full: no block is left.",
            },
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Whether the condition holds.",
            },
            "reason": {"type": "string", "description": "Why, in one word."},
            "message": {"type": "string", "description": "Why, in a sentence for people."},
            "lastTransitionTime": {
                "type": "string",
                "format": "date-time",
                "description": "When its status last changed.",
            },
        },
        required=("type", "status"),
    )
    return object_schema(
        "What the controller says of the pool.",
        {
            "blocks": _usage("Blocks of the pool."),
            "addresses": _usage("Addresses of the pool; used are all those of a block that a node has."),
            "conditions": {
                "type": "array",
                "description": "State of the pool.",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            "observedGeneration": observed_generation_schema("pool"),
        },
    )


def _usage(description: str) -> Document:
    count: Document = {"type": "integer", "format": "int64", "minimum": 0}
    return object_schema(
        description,
        {
            "total": count | {"description": "How many there can be, or 2^63 - 1 if there can be more."},
            "used": count | {"description": "How many of them are taken."},
        },
    )


def address_block_definition() -> Document:
    return define(
        ADDRESS_BLOCKS,
        "A block of addresses of a pool. Its labels name the pool, the node that it belongs to and the "
        "BlockRequest that it answers. All its addresses are routed to that node.",
        {
            "index": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "description": "Number of the block within its pool, from 0. Immutable.",
                RULES: [cel_rule("self == oldSelf", UNCHANGED)],
            },
            "ipv4": _network("IPv4", _IPV4_CIDR, "10.2.2.0/27", length=IPV4_CIDR_LENGTH),
            "ipv6": _network("IPv6", _IPV6_CIDR, "fd01:203:405:607::200/123", length=IPV6_CIDR_LENGTH),
        },
        required=("index",),
        columns=[
            column("Node", label_path(LABEL_NODE), "Node that the addresses are routed to"),
            column("Pool", label_path(LABEL_POOL), "Pool that the block was carved from"),
            column("IPv4", ".ipv4", "IPv4 addresses of the block"),
            column("IPv6", ".ipv6", "IPv6 addresses of the block"),
        ],
        # A node that changed its blocks could take others' addresses.
        rules=[
            cel_rule(
                f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
                UNCHANGED,
                field=field,
            )
            for field in ("ipv4", "ipv6")
        ],
    )


def block_request_definition() -> Document:
    name = {"type": "string", "minLength": 1, "maxLength": 253}
    condition = object_schema(
        "One aspect of the answer.",
        {
            "type": {
                "type": "string",
                "enum": [str(kind) for kind in ConditionType],
                "description": "Complete: there is an answer. Failed: the answer is that there is no block.",
            },
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Whether the condition holds.",
            },
            "reason": {"type": "string", "description": "Why, in a few words."},
            "message": {"type": "string", "description": "Why, in a sentence for people."},
            "lastProbeTime": {
                "type": "string",
                "format": "date-time",
                "description": "When the condition was last looked at.",
            },
            "lastTransitionTime": {
                "type": "string",
                "format": "date-time",
                "description": "When its status last changed.",
            },
        },
        required=("type", "status"),
    )
    return define(
        BLOCK_REQUESTS,
        "A node's request for an address block, made and deleted by coild and answered in the status.",
        {
            "spec": object_schema(
                "Who asks for a block, and of what.",
                {
                    "nodeName": name | {"description": "Node that the block is for."},
                    "poolName": name | {"description": "AddressPool to carve the block from."},
                },
                required=("nodeName", "poolName"),
            ),
            "status": object_schema(
                "The answer. Failed=True is a refusal; otherwise Complete=True is a grant.",
                {
                    "addressBlockName": {
                        "type": "string",
                        "description": "AddressBlock of this request. It is an answer once Complete is True.",
                    },
                    "conditions": {
                        "type": "array",
                        "description": "State of the request; none while it waits.",
                        "items": condition,
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["type"],
                    },
                },
            ),
        },
        required=("spec",),
        columns=[
            column("Node", ".spec.nodeName", "Node that the block is for"),
            column("Pool", ".spec.poolName", "Pool to carve the block from"),
            # The controller puts Failed before Complete, and a column shows the first match.
            column("Status", '.status.conditions[?(@.status=="True")].type', "Empty while the request waits"),
            column("Reason", '.status.conditions[?(@.type=="Failed")].reason', "Why there is no block"),
            column("Block", ".status.addressBlockName", "Block of this request"),
            AGE,
        ],
        subresources={"status": {}},
    )


def definitions(pod_template: Document) -> dict[str, Document]:
    """Every CRD of the suite, by file name. `pod_template` is the schema of a PodTemplateSpec."""
    documents = (
        address_pool_definition(),
        address_block_definition(),
        block_request_definition(),
        egress_definition(pod_template),
        egress_client_slice_definition(),
        *eip_definitions(),
    )
    return {f"{_group_and_plural(document)}.yaml": document for document in documents}


def _group_and_plural(document: Document) -> str:
    return f"{document['spec']['group']}_{document['spec']['names']['plural']}"


def _network(family: str, pattern: str, example: str, *, length: int) -> Document:
    return {
        "type": "string",
        "maxLength": length,
        "pattern": pattern,
        "description": f"{family} network in CIDR notation, such as {example}.",
    }


def _condition_path(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'
