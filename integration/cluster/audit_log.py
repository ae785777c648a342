"""What Coil's programs really ask of an API server: its audit log, condensed to the distinct calls when a cluster goes.

Only where the environment names a folder for it (`CALLS_VARIABLE`): then each API server logs what service accounts ask
of it, and `cleanup`, past which no cluster goes, leaves a file of calls in that folder, named by the cluster. The log
itself goes with the cluster. A call tells the role that allowed it, in the API server's own judgement.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CALLS_VARIABLE = "COIL_API_CALLS"
"""Environment variable: the folder for the calls, made if need be."""

USER_AGENT = "coil"
"""Of all programs, and of nobody else: tests look through a service account's eyes with kubectl, too."""

_LOG = "audit.log"
_LOG_SIZE, _LOG_BACKUPS = 200, 1  # megabytes, and files beside the current one: a soak writes less
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # A watch is told of as it begins (ResponseStarted): many never end before the API server does.
    "omitStages": ["RequestReceived"],
    "rules": [
        # Which groups and versions there are: everybody may ask.
        {"level": "None", "nonResourceURLs": ["*"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
    ],
}
_ACCOUNT = "system:serviceaccount:"
_DECISION = "authorization.k8s.io/decision"
_REASON = "authorization.k8s.io/reason"
_DEPRECATED = "k8s.io/deprecated"
_GRANT = re.compile(
    r'allowed by (?P<binding>\w+) "(?P<name>[^"]+)" of (?P<kind>\w+) "(?P<role>[^"]+)"',
)


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Call:
    """Something that a program asked, once or often.

    `account` has no namespace, and `resource` its subresource after a slash. A call that was allowed has the `role`
    that allowed it (`role_title`), and neither `namespace` nor `name`, of which there would be thousands. One that was
    refused has no role.
    """

    account: str
    verb: str
    group: str
    resource: str
    role: str = ""
    namespace: str = ""
    name: str = ""
    deprecated: str = ""
    """The version of the API, where the API server warns of it."""


def role_title(kind: str, name: str, namespace: str = "") -> str:
    """How a role is called here; `namespace` is that of a Role."""
    return f"{kind} {name} in {namespace}" if kind == "Role" else f"{kind} {name}"


def audit_flags(folder: Path) -> list[str]:
    """The API server's flags for a log in the cluster's folder, whose policy is written there; none if not wanted."""
    if not os.environ.get(CALLS_VARIABLE):
        return []
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(_POLICY))
    return [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={folder / _LOG}",
        f"--audit-log-maxsize={_LOG_SIZE}",
        f"--audit-log-maxbackup={_LOG_BACKUPS}",
    ]


def keep_calls(cluster: str, folder: Path) -> None:
    """Leave the calls of a cluster whose API server has ended in the folder for them. Idempotent.

    Never fails: a cluster must go. Calls that are missing are missed by whoever reads them.
    """
    target = os.environ.get(CALLS_VARIABLE)
    if not target:
        return
    with suppress(OSError):
        if calls := select_calls(_lines(folder)):
            kept = Path(target)
            kept.mkdir(parents=True, exist_ok=True)
            part = kept / f"{cluster}.{os.getpid()}"
            part.write_text(json.dumps([asdict(call) for call in sorted(calls)], indent=0))
            # Of two clean-ups at once the first has seen the whole log.
            with suppress(FileExistsError):
                (kept / f"{cluster}.json").hardlink_to(part)
            part.unlink()


def load_calls(folder: Path) -> set[Call]:
    """The calls of all clusters that have left a file in the folder, which need not exist."""
    return {Call(**entry) for path in folder.glob("*.json") for entry in json.loads(path.read_text())}


def select_calls(lines: Iterable[bytes]) -> set[Call]:
    """The distinct calls of Coil's programs in a log (audit.k8s.io/v1, Event, one a line)."""
    agent = f'"userAgent":"{USER_AGENT}"'.encode()
    calls = set()
    for line in lines:
        if agent in line:
            # An API server that was killed may have left half a line, and its successor has gone on behind it.
            with suppress(json.JSONDecodeError):
                calls |= _calls_of(json.loads(line))
    return calls


def _calls_of(event: Mapping[str, Any]) -> set[Call]:
    user: str = event["user"]["username"]
    decision = event.get("annotations", {}).get(_DECISION)
    # Without a decision it was turned away before anybody asked who may: too many requests, or a broken one.
    if not user.startswith(_ACCOUNT) or decision is None or "objectRef" not in event:
        return set()
    place = event["objectRef"]
    resource = "/".join(filter(None, (place["resource"], place.get("subresource"))))
    account = user.removeprefix(_ACCOUNT).partition(":")[2]
    group = place.get("apiGroup", "")
    if decision == "allow":
        annotations = event["annotations"]
        role = _role(annotations.get(_REASON, ""))
        deprecated = place["apiVersion"] if annotations.get(_DEPRECATED) == "true" else ""
        call = Call(
            account=account, verb=event["verb"], group=group, resource=resource, role=role, deprecated=deprecated
        )
        return {call}
    return {
        Call(
            account=account,
            verb=event["verb"],
            group=group,
            resource=resource,
            namespace=place.get("namespace", ""),
            name=place.get("name", ""),
        )
    }


def _role(reason: str) -> str:
    """The role in the RBAC authorizer's sentence; the sentence itself when it is another's."""
    found = _GRANT.search(reason)
    if found is None:
        return reason or "nobody said why"
    # A RoleBinding is named with its namespace: "name/namespace".
    namespace = found["name"].partition("/")[2] if found["binding"] == "RoleBinding" else ""
    return role_title(found["kind"], found["role"], namespace)


def _lines(folder: Path) -> Iterator[bytes]:
    """Of the log and of what it was before it grew too large."""
    for path in sorted(folder.glob(f"{Path(_LOG).stem}*.log")):
        with path.open("rb") as log:
            yield from log
