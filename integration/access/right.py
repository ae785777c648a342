"""What the chart grants to the programs' accounts, right by right. Pure.

A right is one verb on one resource, in one role. Users' roles, which the chart binds to no account, are none of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from coil.egress.router_pod import ROUTER_ACCOUNT
from coil_egress_controller.egress.router_account import ROUTER_ROLE
from integration.cluster.audit_log import Call, role_title
from integration.helm.chart import Document

RightKey: TypeAlias = tuple[str, str, str, str, str]
"""Account, role, verb, group and resource: what tells the chart's rights apart."""

RAVEN_VALUES: Final[dict[str, object]] = {"enabled": True, "services": {"cidrs": ["10.96.0.0/12"]}}
"""coil-raven with every right that it may have."""
POOL_VALUES: Final[dict[str, object]] = {
    "eip": {"enabled": True, "egressPolicies": True},
    "routeSync": {"enabled": True},
    "raven": RAVEN_VALUES,
}
"""Of the chart: everything that it can install together, with addresses from pools."""
_ROUTERS: Final[Document] = {
    "kind": "RoleBinding",
    "metadata": {"name": ROUTER_ACCOUNT},
    "roleRef": {"kind": "ClusterRole", "name": ROUTER_ROLE},
    "subjects": [{"name": ROUTER_ACCOUNT}],
}
"""The egress-controller makes one in each namespace that has Egresses."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Right:
    """`role` as in `role_title`; `names` are those of the objects that it is limited to, or none.

    `namespace` is the one that it is limited to, or empty.
    """

    account: str
    role: str
    verb: str
    group: str
    resource: str
    names: tuple[str, ...] = ()
    namespace: str = ""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        only = f" named {' or '.join(self.names)}" if self.names else ""
        return f"{self.account}: {self.verb} {self.resource}{group}{only} ({self.role})"

    @property
    def key(self) -> RightKey:
        return self.account, self.role, self.verb, self.group, self.resource

    def allowed(self, call: Call) -> bool:
        """Whether it is what the API server allowed the call by."""
        return (self.role, *self._what) == (call.role, call.account, call.verb, call.group, call.resource)

    def would_allow(self, call: Call) -> bool:
        """Whether it covers a call that was refused, which has a namespace and mostly a name."""
        return (
            self._what == (call.account, call.verb, call.group, call.resource)
            and (not self.names or call.name in self.names)
            and (not self.namespace or call.namespace == self.namespace)
        )

    @property
    def _what(self) -> tuple[str, str, str, str]:
        return self.account, self.verb, self.group, self.resource


def chart_rights(documents: Sequence[Document]) -> list[Right]:
    """Every right of every account that the documents bind a role to, in their order, and then those of router pods."""
    roles = {_place(each): each["rules"] for each in documents if each["kind"] in ("ClusterRole", "Role")}
    bindings = [each for each in documents if each["kind"] in ("ClusterRoleBinding", "RoleBinding")]
    if ("ClusterRole", ROUTER_ROLE, "") in roles:
        bindings.append(_ROUTERS)
    return [right for binding in bindings for right in _rights_of(binding, roles)]


def _rights_of(binding: Document, roles: dict[tuple[str, str, str], list[dict[str, Any]]]) -> Iterator[Right]:
    """In the order of the rules."""
    reference, namespace = binding["roleRef"], binding["metadata"].get("namespace", "")
    rules = roles[reference["kind"], reference["name"], namespace if reference["kind"] == "Role" else ""]
    for account in (subject["name"] for subject in binding.get("subjects", ())):
        for rule in rules:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield Right(
                            account=account,
                            role=role_title(reference["kind"], reference["name"], namespace),
                            verb=verb,
                            group=group,
                            resource=resource,
                            names=tuple(rule.get("resourceNames", ())),
                            namespace=namespace,
                        )


def _place(role: Document) -> tuple[str, str, str]:
    return role["kind"], role["metadata"]["name"], role["metadata"].get("namespace", "")
