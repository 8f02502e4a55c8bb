"""Finds the first of many strings in a text that arrives in pieces, in time linear in the text.

A trie of the strings with links to the longest other prefix that ends at the same place (Aho and
Corasick, 1975). Knows nothing of tokens.
"""

from collections.abc import Iterable


class _Node:
    """A prefix of some string."""

    __slots__ = ("children", "depth", "found", "held", "link")

    def __init__(self, depth: int) -> None:
        self.children: dict[str, _Node] = {}
        self.depth = depth
        self.link: _Node | None = None
        self.found: str | None = None
        """The longest string that ends here."""
        self.held = 0
        """Length of the longest end of the text that may still grow into a string."""


class StopStrings:
    """Non-empty ``strings`` and how far one text has got with them."""

    def __init__(self, strings: Iterable[str]) -> None:
        self._root = _Node(0)
        for string in strings:
            node = self._root
            for character in string:
                following = node.children.get(character)
                if following is None:
                    following = node.children[character] = _Node(node.depth + 1)
                node = following
            node.found = string
        self._connect()
        self._at = self._root

    def _connect(self) -> None:
        level = [self._root]
        while level:
            following = []
            for node in level:
                for character, child in node.children.items():
                    link = node.link
                    while link is not None and character not in link.children:
                        link = link.link
                    child.link = self._root if link is None else link.children[character]
                    child.found = child.found or child.link.found
                    child.held = child.depth if child.children else child.link.held
                    following.append(child)
            level = following

    @property
    def held(self) -> int:
        """How many of the last characters may be the beginning of a string."""
        return self._at.held

    def push(self, text: str, may_end: bool = True) -> tuple[int, str] | None:
        """Where in ``text`` the first string ends, and which; the longest of several.

        Strings that end while ``may_end`` is False do not count. After a find nothing may follow.
        """
        node = self._at
        for place, character in enumerate(text, start=1):
            following = node.children.get(character)
            while following is None and node.link is not None:
                node = node.link
                following = node.children.get(character)
            node = following or self._root
            if node.found is not None and may_end:
                return place, node.found
        self._at = node
        return None
