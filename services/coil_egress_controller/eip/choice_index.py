"""Which gateway each policy means, kept up to date change by change.

A policy's gateway follows from its spec, the labels of its namespace and what the gateways allow; so each of the three
may move policies from one gateway to another, and both have to be looked at then.
"""

from collections.abc import Callable, Iterable

from coil.crd.builtin import Namespace
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.resource import object_key
from coil.eip.gateway_choice import NoGateway, choose_gateway
from coil_egress_controller.cluster_view import BY_NAMESPACE
from coil_egress_controller.eip.view import BY_GATEWAY, EipView


class ChoiceIndex:
    """In memory, of one term. The methods `change_…` take an informer's changes and name the gateways that have other
    policies, or other wishes of theirs, than before; `strayed` hears of each policy that means none now, or for another
    reason. One that is being deleted means nothing.
    """

    def __init__(self, view: EipView, *, strayed: Callable[[str], None]) -> None:
        self._view = view
        self._strayed = strayed
        self._choices: dict[str, str | NoGateway] = {}
        self._policies: dict[str, set[str]] = {}

    def policies(self, gateway: str) -> list[str]:
        """The keys of the policies that mean the gateway of that name."""
        return sorted(self._policies.get(gateway, ()))

    def choice(self, policy: str) -> str | NoGateway | None:
        """What the policy of that key means; None if there is none, or it goes."""
        return self._choices.get(policy)

    def change_policy(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> Iterable[str]:
        """Changes of a status alone are none."""
        present = new or old
        if present is None or (old is not None and new is not None and _wish(old) == _wish(new)):
            return
        key = object_key(present.metadata)
        moved = self._judge(key, new)
        choice = self._choices.get(key)
        yield from moved or ([choice] if isinstance(choice, str) else [])

    def change_namespace(self, old: Namespace | None, new: Namespace | None) -> Iterable[str]:
        present = new or old
        if present is None or (old is not None and new is not None and old.metadata.labels == new.metadata.labels):
            return
        for policy in self._view.policies.by_index(BY_NAMESPACE, present.metadata.name):
            yield from self._judge(object_key(policy.metadata), policy)

    def change_gateway(self, old: EgressGateway | None, new: EgressGateway | None) -> Iterable[str]:
        """Does not name the gateway itself unless its policies change."""
        present = new or old
        if present is None:
            return
        if old is not None and new is not None and old.spec.allowed_namespaces == new.spec.allowed_namespaces:
            return
        for name in (present.metadata.name, ""):
            for policy in self._view.policies.by_index(BY_GATEWAY, name):
                yield from self._judge(object_key(policy.metadata), policy)

    def _judge(self, key: str, policy: EgressGatewayPolicy | None) -> list[str]:
        """Choose anew; returns the gateways that the policy has left and come to, if it moves."""
        before = self._choices.pop(key, None)
        after = self._choose(policy) if policy is not None and not policy.metadata.deleting else None
        if after is not None:
            self._choices[key] = after
        if before == after:
            return []
        if isinstance(before, str):
            self._policies[before].discard(key)
        if isinstance(after, str):
            self._policies.setdefault(after, set()).add(key)
        elif after is not None:
            self._strayed(key)
        return [name for name in (before, after) if isinstance(name, str)]

    def _choose(self, policy: EgressGatewayPolicy) -> str | NoGateway:
        namespace = self._view.namespaces.get(policy.metadata.namespace)
        found = choose_gateway(
            policy.spec,
            namespace_labels=namespace.metadata.labels if namespace is not None else {},
            gateway=self._view.gateways.get,
        )
        return found if isinstance(found, NoGateway) else found.metadata.name


def _wish(policy: EgressGatewayPolicy) -> tuple[object, ...]:
    return policy.metadata.uid, policy.metadata.deleting, policy.spec
