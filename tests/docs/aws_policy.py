"""The IAM policies in docs/aws.md."""

import json
from dataclasses import dataclass
from typing import Any, Final

from integration.docs.page import read_pages

POLICY: Final = "json"
PREFIX: Final = "ec2:"
RESOURCE_TAG: Final = "aws:ResourceTag/"
REQUEST_TAG: Final = "aws:RequestTag/"


@dataclass(frozen=True, slots=True)
class Statement:
    """One of a policy. `tags` are those that it is limited to, by the key of the condition."""

    actions: frozenset[str]
    resources: tuple[str, ...]
    tags: dict[str, str]


def read_policies() -> list[list[Statement]]:
    """The nodes' and the controller's, in the order of the page."""
    [page] = [each for each in read_pages() if each.name == "aws.md"]
    return [_read(json.loads(block.text)) for block in page.blocks if block.language == POLICY]


def allowed(policy: list[Statement]) -> set[str]:
    """The operations that a policy allows to somebody, on something."""
    return {action for statement in policy for action in statement.actions}


def _read(document: dict[str, Any]) -> list[Statement]:
    assert document["Version"] == "2012-10-17"
    return [_statement(each) for each in document["Statement"]]


def _statement(document: dict[str, Any]) -> Statement:
    assert document["Effect"] == "Allow"
    actions = _listed(document["Action"])
    assert all(action.startswith(PREFIX) for action in actions)
    return Statement(
        actions=frozenset(action.removeprefix(PREFIX) for action in actions),
        resources=tuple(_listed(document["Resource"])),
        tags=document.get("Condition", {}).get("StringEquals", {}),
    )


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
