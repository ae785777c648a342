"""Who is bound to which EIP, and on which node that is, while a gateway is being placed.

Invariants: an address is in one EIP, and taken from the pool; an EIP is settled once, on a node or, where none is
ready, on None.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip, GatewayRules
from coil.eip.eip_pool import EipPool
from coil.kernel.family import IPAddress


@dataclass(slots=True, eq=False)
class Binding:
    """An EIP in use. `node` says nothing before it is `settled`."""

    eip: Eip
    policies: list[PolicyRef] = field(default_factory=list)
    node: NodeName | None = None
    settled: bool = False


class EipIndex:
    """See the module. `bindings` are in the order of their making."""

    def __init__(self, rules: GatewayRules) -> None:
        self.pool = EipPool(rules)
        self.bindings: list[Binding] = []
        self._limit = rules.address_limit
        self._by_address: dict[IPAddress, Binding] = {}
        self._on: dict[NodeName | None, list[Binding]] = {}
        self._unfilled: dict[NodeName | None, dict[int, Binding]] = {}

    def adopt(self, eip: Eip) -> Binding | None:
        """The binding that `eip` means, made if nobody has it; a lone address gets a partner where there is one.

        None when one of the addresses is bound, and not to that partner. `eip` lies in the ranges.
        """
        found = {id(binding): binding for address in _addresses(eip) if (binding := self._by_address.get(address))}
        if not found:
            return self.bind(self.pool.complete(eip))
        bound = next(iter(found.values()))
        return bound if len(found) == 1 and bound.eip.agrees(eip) else None

    def bind(self, eip: Eip) -> Binding:
        """Make the binding of an EIP that is not in use."""
        binding = Binding(eip)
        self.pool.take(eip)
        self.bindings.append(binding)
        for address in _addresses(eip):
            self._by_address[address] = binding
        return binding

    def join(self, binding: Binding, policy: PolicyRef) -> None:
        """One more policy uses it."""
        binding.policies.append(policy)
        if binding.settled and len(binding.policies) >= self._limit:
            self._unfilled[binding.node].pop(id(binding), None)

    def settle(self, binding: Binding, node: NodeName | None) -> None:
        """Say, once, where it is."""
        binding.node, binding.settled = node, True
        self._on.setdefault(node, []).append(binding)
        unfilled = self._unfilled.setdefault(node, {})
        if len(binding.policies) < self._limit:
            unfilled[id(binding)] = binding

    def on(self, node: NodeName | None) -> list[Binding]:
        """What is settled there."""
        return self._on.get(node, [])

    def unfilled(self, node: NodeName | None) -> Mapping[int, Binding]:
        """What is settled there and has fewer policies than the address limit, what was settled first before others."""
        return self._unfilled.get(node, {})

    def partners(self, eip: Eip) -> str:
        """What the addresses of `eip` are bound to, for a message."""
        bound = {binding.eip for address in _addresses(eip) if (binding := self._by_address.get(address))}
        return ", ".join(sorted(f"bound are {one}" for one in bound))


def _addresses(eip: Eip) -> list[IPAddress]:
    return [address for address in (eip.ipv4, eip.ipv6) if address is not None]
