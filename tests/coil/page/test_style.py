"""Colours that can be told apart (WCAG 2.2: 1.4.3 for text, 1.4.11 for all else), in both schemes."""

import re

import pytest

from coil.page.style import STYLE

SCHEMES = [
    dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6});", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S)
]


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_there_are_two_schemes_of_the_same_names() -> None:
    light, dark = SCHEMES
    assert light.keys() == dark.keys()
    assert light != dark


@pytest.mark.parametrize("scheme", SCHEMES, ids=["light", "dark"])
@pytest.mark.parametrize("paper", ["paper", "card", "well"])
@pytest.mark.parametrize("text", ["ink", "soft"])
def test_text(scheme: dict[str, str], paper: str, text: str) -> None:
    assert contrast(scheme[text], scheme[paper]) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES, ids=["light", "dark"])
@pytest.mark.parametrize("text", ["out", "cool", "held", "bad", "hit"])
def test_coloured_words(scheme: dict[str, str], text: str) -> None:
    assert contrast(scheme[text], scheme["card"]) >= 4.5
    assert contrast(scheme["hit"], scheme["paper"]) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES, ids=["light", "dark"])
@pytest.mark.parametrize("cell", ["out", "cool", "free", "held", "bad", "hit"])
def test_cells(scheme: dict[str, str], cell: str) -> None:
    assert contrast(scheme[cell], scheme["card"]) >= 3
