"""The modules that a section of DESIGN.md names, in bold: its claim of who takes part."""

import re
from collections.abc import Collection
from pathlib import Path

_DESIGN = Path(__file__).parents[2] / "DESIGN.md"
_NAME = re.compile(r"\*\*`(coil[\w.]*)`\*\*")


def named_modules(title: str) -> list[str]:
    """The modules and rooms that the section with that title names in bold, in its order, each once."""
    sections = re.split(r"^## ", _DESIGN.read_text(), flags=re.MULTILINE)
    [text] = [section for section in sections if section.startswith(f"{title}\n")]
    names = list(dict.fromkeys(_NAME.findall(text)))
    assert names, f"the section {title!r} of DESIGN.md names nobody"
    return names


def called(name: str, modules: Collection[str]) -> bool:
    """Whether the module, or one of the room of that name, is among those that were called."""
    return any(module == name or module.startswith(f"{name}.") for module in modules)
