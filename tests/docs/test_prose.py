"""What the pages name: links lead somewhere; flags, values, metrics, alerts, reasons, messages and files exist."""

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

import pytest
import yaml

from coil.runtime.former_flag import COILD, EGRESS_AGENT, EGRESS_CONTROLLER, IPAM_CONTROLLER
from integration.cluster.bird import Speaker, render_bird
from integration.docs.page import DOCS, ROOT, SAYINGS, Block, Page, read_pages
from integration.helm.chart import CHART
from tests.docs.code_text import is_said, unsaid
from tests.docs.program_help import OURS, own_flags, plugin_flags
from tests.docs.test_command import SCHEMA, is_value

PAGES = read_pages()
NAMES = [page.name for page in PAGES]
ADMIN = {
    *("README.md", "aws.md", "egress-nat.md", "eip-gateway.md", "install.md", "metrics.md", "pools.md", "routing.md"),
    *("neutron.md", "troubleshooting.md", "upgrade.md"),
}
SAYING_BLOCKS = [block for page in PAGES for block in page.blocks if block.language == SAYINGS]
KUBERNETES = {"FailedCreatePodSandBox", "NODE", "PHASE", "FILL", "NAMESPACE", "NAME", "UID"}
"""Words of others, and headings of columns."""
INTERFACES = {"egress.eip", "egress.vxlan", "egress.wg"}
"""Which look like values."""

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_METRIC = re.compile(r"(coil|workqueue|controller_runtime|leader_election|informer|event_recorder)_[a-z0-9_]+")
_METRIC_ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
_PATH = re.compile(r"(charts|docs|integration|tests|services)/[\w./-]+")
_OTHERS = ("kubectl ", "helm ", "docker ", "python ", "nox ", "ctr ", "coil-migrator ")


def page(name: str) -> Page:
    return next(each for each in PAGES if each.name == name)


def spans(name: str) -> list[str]:
    """Texts in backticks outside blocks."""
    return _CODE.findall(page(name).prose)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    plain = (heading.replace("`", "").lower() for heading in _HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def links(text: str) -> Iterator[str]:
    for target in (one or other for one, other in _LINK.findall(_CODE.sub("", text))):
        if "://" not in target:
            yield target


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    for target in links(page(name).prose):
        file, _, anchor = target.partition("#")
        path = DOCS / file if file else DOCS / name
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(page(path.name).prose), target


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    for target in links(text):
        file, _, anchor = target.partition("#")
        assert (ROOT / file).exists(), target
        assert not anchor or anchor in anchors((ROOT / file).read_text()), target


def test_the_index_has_every_page() -> None:
    assert set(NAMES) - {"README.md"} <= set(links(page("README.md").prose))
    assert set(NAMES) >= ADMIN


@pytest.mark.parametrize("name", NAMES)
def test_flags_exist(name: str) -> None:
    former = {flag.spelling for flag in (*COILD, *IPAM_CONTROLLER, *EGRESS_CONTROLLER, *EGRESS_AGENT)}
    every = plugin_flags().union(former, *map(own_flags, OURS))
    for span in spans(name):
        if not span.startswith(_OTHERS):
            program = span.split()[0]
            known = own_flags(program) if program in OURS else every
            assert set(_FLAG.findall(span)) <= known, span


@pytest.mark.parametrize("name", sorted(ADMIN))
def test_metrics_exist(name: str) -> None:
    known = set(_METRIC_ROW.findall(page("metrics.md").prose))
    named = {span for span in spans(name) if _METRIC.fullmatch(span)}
    assert named <= known


@pytest.mark.parametrize("name", sorted(ADMIN))
def test_values_exist(name: str) -> None:
    for span in spans(name):
        looks_so = re.fullmatch(r"[a-z]\w*(\.\w+)+", span) is not None and span not in INTERFACES
        assert not looks_so or span.split(".")[0] not in SCHEMA["properties"] or is_value(span), span


@pytest.mark.parametrize("name", sorted(ADMIN))
def test_alerts_and_reasons_exist(name: str) -> None:
    alerts = {rule["alert"] for rule in yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"][0]["rules"]}
    for span in spans(name):
        if re.fullmatch(r"[A-Z][A-Za-z]+", span) and span not in KUBERNETES:
            assert span in alerts or is_said(span), span


@pytest.mark.parametrize("name", sorted(ADMIN))
def test_files_exist(name: str) -> None:
    for span in spans(name):
        if _PATH.fullmatch(span):
            assert (ROOT / span).exists(), span


@pytest.mark.parametrize("block", SAYING_BLOCKS, ids=str)
def test_programs_say_so(block: Block) -> None:
    lines = block.text.splitlines()
    assert lines
    assert [piece for line in lines for piece in unsaid(line)] == []


def test_there_are_enough_symptoms_and_each_has_a_remedy() -> None:
    _, *symptoms = re.split(r"(?m)^### ", page("troubleshooting.md").prose)
    assert len(symptoms) >= 15
    lacking = [text.splitlines()[0] for text in symptoms if "**Do**" not in text and "what to do" not in text]
    assert lacking == []


def test_every_alert_is_spoken_of() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", (CHART / "alerts.yaml").read_text()))
    assert alerts - set(spans("troubleshooting.md")) == set()


def test_the_configuration_of_bird_is_that_of_the_tests() -> None:
    nodes = [
        Speaker(f"node{number}", IPv4Address(f"192.0.2.{number}"), IPv6Address(f"2001:db8::{number}"))
        for number in (1, 2, 3)
    ]
    (block,) = [block for block in page("routing.md").blocks if block.language == "bird"]
    lines = [line for line in block.text.splitlines() if line]
    assert lines == [line for line in render_bird(nodes[0], nodes[1:]).splitlines() if line]


@pytest.mark.parametrize("text", ["no block of pull …: no such pool", "coild is not their, at …", "… …"])
def test_a_message_that_nobody_says_is_found(text: str) -> None:
    assert unsaid(text)


@pytest.mark.parametrize("word", ["PoolExhausted", "DeploymentRefused", "ServiceNameTaken", "ContradictsPool"])
def test_a_reason_is_found(word: str) -> None:
    assert is_said(word)
    assert not is_said(word + "s")
