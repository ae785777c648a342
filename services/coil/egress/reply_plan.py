"""Replies on the way that the request came: connections that others began over the uplink never see a tunnel.

A connection that comes in by the uplink is marked with the link's index when its first packet arrives. Whatever the pod
sends on that connection gets the mark from it, is routed again for it, and finds the uplink's own routes in a table of
their own. All of this is in the pod's namespace, so the index is a mark that nobody else needs.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from coil.egress.gateway import TunnelPolicy, Uplink
from coil.kernel.family import Family
from coil.kernel.nft_table import (
    Assign,
    ChainType,
    Comparison,
    Field,
    Hook,
    Match,
    NftChain,
    NftTable,
    Priority,
)
from coil.kernel.route import Route
from coil.kernel.rule import Rule

REPLY_PRIORITY: Final = 1000
REPLY_TABLES: Final = 1000
"""The number of a link's table is this and the link's index."""

CLIENT_TABLE: Final = "coil_client"
"""The nftables table of a client."""


def reply_table(uplink: Uplink) -> int:
    """The routing table of the uplink's own routes."""
    return REPLY_TABLES + uplink.index


def plan_reply_rules(uplink: Uplink, families: Collection[Family], policy: TunnelPolicy) -> tuple[Rule, ...]:
    """What is marked looks up the uplink's table, and before all else."""
    return tuple(
        Rule(
            family=family,
            priority=REPLY_PRIORITY,
            table=reply_table(uplink),
            protocol=policy.protocol,
            mark=uplink.index,
        )
        for family in families
    )


def plan_reply_routes(uplink: Uplink, families: Collection[Family], policy: TunnelPolicy) -> tuple[Route, ...]:
    """The uplink's routes of the main table once more; a reply has its source already."""
    return tuple(
        replace(route, table=reply_table(uplink), protocol=policy.protocol, source=None)
        for route in uplink.routes
        if route.family in families
    )


def plan_reply_marks(uplink: Uplink) -> NftTable:
    """Connections remember the uplink, and what is sent on them is routed for it."""
    index = uplink.index
    remember = (
        Match(Field.INPUT_LINK, Comparison.IS, uplink.name),
        Match(Field.CONNECTION_STATE, Comparison.AMONG, "new"),
        Assign(Field.CONNECTION_MARK, index),
    )
    restore = (
        Match(Field.CONNECTION_MARK, Comparison.IS, index),
        Assign(Field.PACKET_MARK, Field.CONNECTION_MARK),
    )
    return NftTable(
        name=CLIENT_TABLE,
        chains=(
            NftChain(name="input", type=ChainType.FILTER, hook=Hook.INPUT, priority=Priority.MANGLE, rules=(remember,)),
            NftChain(name="output", type=ChainType.ROUTE, hook=Hook.OUTPUT, priority=Priority.MANGLE, rules=(restore,)),
        ),
    )
