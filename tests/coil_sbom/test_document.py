"""The SBOM as a document, and what is read of it again."""

import json

import pytest
from packageurl import PackageURL

from coil_sbom.component import Component
from coil_sbom.document import UnreadableSbomError, parse_sbom, render_sbom

STRUCTLOG = Component(url=PackageURL.from_string("pkg:pypi/structlog@26.1.0"))
LIBC = Component(
    url=PackageURL.from_string("pkg:deb/debian/libc6-dev@2.41-12?arch=amd64&distro=debian-13&upstream=glibc"),
    linked_into="/usr/libexec/coil/coil",
)


def test_what_is_written_is_read() -> None:
    assert parse_sbom(render_sbom("coil", "0.1.0", [STRUCTLOG, LIBC])) == sorted([LIBC, STRUCTLOG])


def test_it_says_which_image_it_is_of_and_what_that_depends_on() -> None:
    document = json.loads(render_sbom("coil", "0.1.0", [STRUCTLOG, LIBC]))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    image = document["metadata"]["component"]
    assert (image["type"], image["name"], image["version"]) == ("container", "coil", "0.1.0")
    [depends] = [one["dependsOn"] for one in document["dependencies"] if one["ref"] == image["bom-ref"]]
    assert sorted(depends) == sorted([str(LIBC.url), str(STRUCTLOG.url)])


def test_the_same_components_give_the_same_bytes_and_others_another_serial_number() -> None:
    first = render_sbom("coil", "0.1.0", [STRUCTLOG, LIBC])
    assert render_sbom("coil", "0.1.0", [LIBC, STRUCTLOG, LIBC]) == first
    assert json.loads(render_sbom("coil", "0.1.0", [LIBC]))["serialNumber"] != json.loads(first)["serialNumber"]


def test_what_has_no_package_url_is_passed_over() -> None:
    document = json.loads(render_sbom("coil", "0.1.0", [STRUCTLOG]))
    document["components"].append({"type": "file", "name": "motd"})
    assert parse_sbom(json.dumps(document)) == [STRUCTLOG]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"bomFormat": "CycloneDX", "components": [{"type": "none"}]}'])
def test_what_is_no_sbom_is_refused(text: str) -> None:
    with pytest.raises(UnreadableSbomError):
        parse_sbom(text)
