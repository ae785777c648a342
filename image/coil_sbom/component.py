"""A package that is in the image, read from what Debian and Python have left there of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from packageurl import PackageURL
from packaging.utils import canonicalize_name


class UnreadablePackageError(Exception):
    """A package's own description lacks what it has to say; the message names the file and the field."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Component:
    """One version of a package.

    `url` identifies it (https://github.com/package-url/purl-spec). `linked_into` is the program that a static library
    has become part of, empty for what is in the image as files.
    """

    url: PackageURL
    linked_into: str = ""


def debian_components(folder: Path, *, linked_into: str = "") -> Iterator[Component]:
    """Of a folder with a file of control fields for each package, as `/var/lib/dpkg/status.d`.

    Raises UnreadablePackageError.
    """
    for path in sorted(folder.iterdir()):
        fields = HeaderParser().parsestr(path.read_text())
        name, version = _field(fields, "Package", path), _field(fields, "Version", path)
        qualifiers = {
            "arch": _field(fields, "Architecture", path),
            "distro": "debian-13",
            "upstream": _source(fields["Source"] or name, version),
        }
        url = PackageURL("deb", "debian", name, version, qualifiers=qualifiers)
        yield Component(url=url, linked_into=linked_into)


def python_components(root: Path) -> Iterator[Component]:
    """Of each distribution below `root`, each version once (PyPA's core metadata). Raises UnreadablePackageError."""
    found = set()
    for path in root.glob("**/*.dist-info/METADATA"):
        fields = HeaderParser().parsestr(path.read_text())
        name, version = _field(fields, "Name", path), _field(fields, "Version", path)
        found.add(Component(url=PackageURL("pypi", name=canonicalize_name(name), version=version)))
    yield from sorted(found)


def _source(field: str, version: str) -> str:
    """`name`, or `name@version` where its version is another one: deb-control(5) has it as `name (version)`."""
    name, _, own = field.partition(" ")
    own = own.strip("()")
    return f"{name}@{own}" if own and own != version else name


def _field(fields: Message, name: str, path: Path) -> str:
    value = fields[name]
    if not value:
        raise UnreadablePackageError(f"{path}: there is no {name}")
    return str(value)
