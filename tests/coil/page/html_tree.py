"""An HTML document as an independent parser sees it: balanced, or an AssertionError."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"input", "link", "meta"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: "list[Element | str]" = field(default_factory=list)

    @property
    def classes(self) -> set[str]:
        return set((self.attributes.get("class") or "").split())

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def walk(self) -> "Iterator[Element]":
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    def all(self, tag: str, class_: str = "") -> "list[Element]":
        """The elements of that kind inside, in document order."""
        return [item for item in self.walk() if item.tag == tag and (not class_ or class_ in item.classes)]

    def one(self, tag: str, class_: str = "") -> "Element":
        (found,) = self.all(tag, class_)
        return found

    def by_id(self, name: str) -> "Element":
        (found,) = [item for item in self.walk() if item.attributes.get("id") == name]
        return found


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> stands twice: {attrs}"
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise AssertionError(f"<{tag}/> is not how it is written here")

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data!r}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data!r}")


def parse_html(text: str) -> Element:
    """The root, whose children are what stands at the top."""
    builder = _Builder()
    builder.feed(text)
    builder.close()
    assert builder.open == [builder.root], f"not closed: {[element.tag for element in builder.open[1:]]}"
    return builder.root
