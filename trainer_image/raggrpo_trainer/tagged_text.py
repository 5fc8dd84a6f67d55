"""Find tags such as <answer>…</answer> in text from a model, in time linear in its length. Pure."""

import re
from collections.abc import Collection, Iterator


def tagged_texts(text: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, content) of each tag with one of these names, up to its first closing tag.

    A tag without a closing tag is text. A regular expression such as `<a>(.*?)</a>` would search
    the rest of the text for each of them.
    """
    opening = re.compile(f"<({'|'.join(map(re.escape, names))})>")
    unclosed: set[str] = set()
    position = 0
    while len(unclosed) < len(names) and (match := opening.search(text, position)):
        name, start = match[1], match.end()
        end = -1 if name in unclosed else text.find(f"</{name}>", start)
        if end < 0:
            unclosed.add(name)
            position = start
            continue
        yield name, text[start:end]
        position = end + len(f"</{name}>")
