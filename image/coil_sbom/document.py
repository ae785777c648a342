"""The SBOM as a CycloneDX document, and back.

Of the same components it is the same to the last byte: it has no time, and its serial number follows from them.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.exception import CycloneDxException
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as Entry
from cyclonedx.model.component import ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion

from coil_sbom.component import Component

_LINKED = "coil:linked-into"


class UnreadableSbomError(Exception):
    """It is no CycloneDX document in JSON, or not of packages with URLs; the message says what is wrong."""


def render_sbom(name: str, version: str, components: Iterable[Component]) -> str:
    """CycloneDX 1.6 in JSON, of the image `name` at `version`."""
    known = sorted(set(components))
    image = Entry(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=f"{name}@{version}")
    entries = [_entry(component) for component in known]
    bom = Bom(components=entries)
    bom.metadata.component = image
    bom.metadata.timestamp = datetime.fromtimestamp(0, UTC)
    bom.serial_number = uuid5(NAMESPACE_URL, "\n".join([image.bom_ref.value or "", *map(repr, known)]))
    bom.register_dependency(image, entries)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1) + "\n"


def parse_sbom(text: str) -> list[Component]:
    """The components of an SBOM as `render_sbom` makes it, or another program's with package URLs.

    Raises UnreadableSbomError.
    """
    try:
        bom: Bom = Bom.from_json(json.loads(text))  # type: ignore[attr-defined]
    except (ValueError, TypeError, AttributeError, CycloneDxException) as error:
        raise UnreadableSbomError(f"it is no CycloneDX document in JSON: {error}") from error
    return sorted(
        Component(
            url=entry.purl, linked_into=next((one.value or "" for one in entry.properties if one.name == _LINKED), "")
        )
        for entry in bom.components
        if entry.purl is not None
    )


def _entry(component: Component) -> Entry:
    url = component.url
    linked = [Property(name=_LINKED, value=component.linked_into)] if component.linked_into else []
    return Entry(
        name=url.name,
        version=url.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        properties=linked,
    )
