"""Pages cut into prose and blocks: where a block begins, what its mark means, and what breaks the conventions."""

from pathlib import Path

import pytest

from integration.docs.__main__ import render_list
from integration.docs.page import Block, ByHand, PageError, Place, Run, Values, parse_page, read_pages, runnable_blocks

PAGE = """# Title

Words.

<!-- run: make-it -->
```sh
kubectl apply --filename a.yaml
# a comment

echo done
```

<!-- run: look, on the node -->
```sh
ip rule
```
<!-- values: egress-only -->
```yaml
egress:
  port: 5555
```

```
nothing
```
````text
```
inside
```
````
"""


def test_blocks_have_their_language_text_and_mark() -> None:
    blocks = parse_page("a.md", PAGE).blocks
    assert blocks == (
        Block("a.md", 6, "sh", "kubectl apply --filename a.yaml\n# a comment\n\necho done\n", Run("make-it")),
        Block("a.md", 14, "sh", "ip rule\n", Run("look", Place.NODE)),
        Block("a.md", 18, "yaml", "egress:\n  port: 5555\n", Values("egress-only")),
        Block("a.md", 23, "", "nothing\n"),
        Block("a.md", 26, "text", "```\ninside\n```\n"),
    )
    assert str(blocks[0]) == "a.md:6"


def test_the_prose_keeps_its_lines_and_has_no_blocks() -> None:
    page = parse_page("a.md", PAGE)
    lines = page.prose.splitlines()
    assert lines[0] == "# Title"
    assert lines[4] == "<!-- run: make-it -->"
    assert "kubectl" not in page.prose
    assert "inside" not in page.prose
    assert len(page.prose.split("\n")) == len(PAGE.splitlines())


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("<!-- by hand: needs Docker -->", ByHand("needs Docker")),
        ("<!-- values -->", Values()),
        ("<!-- run: a-1 -->", Run("a-1")),
        ("<!-- a comment -->", None),
        ("", None),
    ],
)
def test_marks(text: str, mark: object) -> None:
    (block,) = parse_page("a.md", f"{text}\n```sh\n```\n").blocks
    assert block.mark == mark


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```sh\nls\n", "a.md:1: the block has no end"),
        ("<!-- run: a -->\n\n```sh\n```\n", "a.md:1: no block follows the mark"),
        ("<!-- run: a -->", "a.md:1: no block follows the mark"),
        ("\n<!-- run: A b -->\n```sh\n```\n", "a.md:2: 'A b' is no name of a block"),
        ("<!-- run -->\n```sh\n```\n", "'' is no name of a block"),
        ("<!-- by hand -->\n```sh\n```\n", "say why"),
    ],
)
def test_what_breaks_the_conventions(text: str, said: str) -> None:
    with pytest.raises(PageError, match=said):
        parse_page("a.md", text)


def test_blocks_that_are_executed_have_names_of_their_own() -> None:
    page = parse_page("a.md", PAGE)
    assert list(runnable_blocks([page])) == ["make-it", "look"]
    with pytest.raises(PageError, match=r"b\.md:6: a\.md:6 has the name 'make-it' already"):
        runnable_blocks([page, parse_page("b.md", PAGE)])


def test_the_pages_of_a_folder_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("b\n")
    (tmp_path / "a.md").write_text("a\n")
    (tmp_path / "c.txt").write_text("c\n")
    assert [(page.name, page.prose) for page in read_pages(tmp_path)] == [("a.md", "a"), ("b.md", "b")]


def test_the_list_has_a_line_for_each_block_that_is_executed() -> None:
    pages = read_pages()
    lines = render_list().splitlines()
    names = [line.split()[1].rstrip(",") for line in lines if " by hand: " not in line]
    assert names == list(runnable_blocks(pages))
    assert sum(" by hand: " in line for line in lines) == sum(
        isinstance(block.mark, ByHand) for page in pages for block in page.blocks
    )
