"""What libnftables does with our commands, in memory; integration/netns/test_nft.py asks the same of the real one."""

import copy
from typing import Any


class RefusedError(Exception):
    """The transaction failed, and nothing of it happened."""


class MemoryNft:
    """The objects of one namespace, as they are listed."""

    def __init__(self) -> None:
        self._objects: list[dict[str, Any]] = []
        self._handle = 0
        self.transactions = 0

    def run(self, commands: list[dict[str, Any]]) -> None:
        """All commands, or none."""
        before = copy.deepcopy(self._objects)
        self.transactions += 1
        try:
            for command in commands:
                [(verb, described)] = command.items()
                [(kind, content)] = described.items()
                getattr(self, f"_{verb}")(kind, content)
        except RefusedError:
            self._objects = before
            raise

    def count(self, counter: str) -> None:
        """A packet of 100 bytes comes by."""
        for entry in self._all("counter", name=counter):
            entry["packets"] += 1
            entry["bytes"] += 100

    def put(self, name: str, key: Any, value: Any) -> None:
        """An element of a map."""
        [content] = self._all("map", name=name)
        content.setdefault("elem", []).append([key, value])

    def elements(self, name: str) -> list[Any]:
        """Those of a map."""
        [content] = self._all("map", name=name)
        return list(content.get("elem", []))

    def listing(self, table: str) -> list[dict[str, Any]]:
        """The objects of a table: itself, then counters, sets, chains, rules; a chain's rules in their order."""
        order = ("table", "counter", "set", "map", "chain", "rule")
        mine = [
            entry
            for entry in self._objects
            for kind, content in entry.items()
            if content["name" if kind == "table" else "table"] == table
        ]
        return copy.deepcopy(sorted(mine, key=lambda entry: order.index(next(iter(entry)))))

    def _add(self, kind: str, content: dict[str, Any]) -> None:
        if kind != "table":
            self._need("table", name=content["table"])
        if kind == "rule":
            self._need("chain", table=content["table"], name=content["chain"])
            for kind_, name in _mentions(content["expr"]):
                if not any(self._all(each, table=content["table"], name=name) for each in kind_):
                    raise RefusedError(f"there is no {kind_} {name}")
        elif there := self._all(kind, **{key: content[key] for key in ("table", "name") if key in content}):
            if kind != "counter" and not content.items() <= there[0].items():
                raise RefusedError(f"a {kind} of that name is there, and it is another")
            return
        self._handle += 1
        figures = {"packets": 0, "bytes": 0} if kind == "counter" else {}
        self._objects.append({kind: {**copy.deepcopy(content), "handle": self._handle, **figures}})

    def _flush(self, kind: str, content: dict[str, Any]) -> None:
        assert kind == "chain"
        self._need("chain", table=content["table"], name=content["name"])
        self._drop("rule", table=content["table"], chain=content["name"])

    def _delete(self, kind: str, content: dict[str, Any]) -> None:
        self._need(kind, **{key: content[key] for key in ("table", "name") if key in content})
        if kind == "table":
            for part in ("rule", "chain", "counter", "set", "map"):
                self._drop(part, table=content["name"])
            self._drop("table", name=content["name"])
            return
        if kind == "chain":
            self._drop("rule", table=content["table"], chain=content["name"])
        for rule in self._all("rule", table=content["table"]):
            if any(kind in kinds and name == content["name"] for kinds, name in _mentions(rule["expr"])):
                raise RefusedError("busy")
        self._drop(kind, table=content["table"], name=content["name"])

    def _need(self, kind: str, **wanted: str) -> None:
        if not self._all(kind, **wanted):
            raise RefusedError(f"there is no {kind} {wanted}")

    def _all(self, kind: str, **wanted: str) -> list[dict[str, Any]]:
        found = (entry[kind] for entry in self._objects if kind in entry)
        return [content for content in found if wanted.items() <= content.items()]

    def _drop(self, kind: str, **wanted: str) -> None:
        going = self._all(kind, **wanted)
        self._objects = [entry for entry in self._objects if not any(entry.get(kind) is content for content in going)]


def _mentions(part: Any) -> list[tuple[tuple[str, ...], str]]:
    """What a rule names, of its table: for each the kinds of object that it may be, and the name."""
    if isinstance(part, list):
        return [found for each in part for found in _mentions(each)]
    if isinstance(part, str):
        return [(("set", "map"), part[1:])] if part.startswith("@") else []
    if not isinstance(part, dict):
        return []
    found = [(("chain",), content["target"]) for verb, content in part.items() if verb in {"jump", "goto"}]
    found += [(("counter",), content) for verb, content in part.items() if verb == "counter"]
    return found + [each for content in part.values() for each in _mentions(content)]
