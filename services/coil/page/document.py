"""What the inspection tells, as a document: JSON as it stands, and the input of a page. The names are a contract.

Fields are written in camelCase, as everything in Kubernetes; nothing is left out, so that a script finds `null` and
never a missing field. Counts are exact and may exceed 2^53. Times are UTC.
"""

import msgspec


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all parts. (`frozen` and `kw_only` are repeated on each, for type checkers.)"""


def render_json(document: Document) -> str:
    """Indented, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=str)).decode() + "\n"
