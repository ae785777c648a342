"""The committed code is what the committed proto gives."""

import pytest

from coil.cnirpc import messages
from coil.cnirpc.error import CniErrorCode
from protos.generate import PACKAGE, generate


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return generate()


@pytest.mark.parametrize("name", ["messages.py", "descriptor.py"])
def test_committed_is_generated(generated: dict[str, str], name: str) -> None:
    assert (PACKAGE / name).read_text() == generated[name], "run: python -m protos.generate"


def test_error_codes_are_those_of_the_proto() -> None:
    assert {code.name: code.value for code in CniErrorCode} == {code.name: code.value for code in messages.ErrorCode}
