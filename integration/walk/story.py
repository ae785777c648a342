"""The modules that a section of DESIGN.md names, in bold: its claim of who takes part, and in which order."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

_DESIGN = Path(__file__).parents[2] / "DESIGN.md"
_STEP = re.compile(r"^\d+\. .*(?:\n +.*)*", re.MULTILINE)
_NAME = re.compile(r"\*\*`(coil[\w.]*)`\*\*")


def named_modules(title: str) -> list[str]:
    """The modules and rooms that the section with that title names in bold, in its order, each once."""
    return _names(_section(title))


def steps(title: str) -> list[list[str]]:
    """The same for each numbered step of the section."""
    return [_names(step) for step in _STEP.findall(_section(title))]


def _section(title: str) -> str:
    sections = re.split(r"^## ", _DESIGN.read_text(), flags=re.MULTILINE)
    [text] = [section for section in sections if section.startswith(f"{title}\n")]
    return text


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(_NAME.findall(text)))
    assert names, f"no module is named in: {text}"
    return names


def called(name: str, modules: Collection[str]) -> bool:
    """Whether the module, or one of the room of that name, is among those that were called."""
    return any(module == name or module.startswith(f"{name}.") for module in modules)


def check_order(names: Sequence[str], modules: Sequence[str]) -> None:
    """Everybody who is named was called, in the order of the names. `modules` are in the order of their first calls.

    Raises AssertionError.
    """
    assert [name for name in names if not called(name, modules)] == []
    assert _by_first_call(names, modules) == list(names)


def in_order(names: Sequence[str], modules: Sequence[str]) -> bool:
    """Whether `check_order` has nothing to say."""
    return all(called(name, modules) for name in names) and _by_first_call(names, modules) == list(names)


def _by_first_call(names: Sequence[str], modules: Sequence[str]) -> list[str]:
    first = {name: next(i for i, module in enumerate(modules) if called(name, [module])) for name in names}
    return sorted(names, key=first.__getitem__)
