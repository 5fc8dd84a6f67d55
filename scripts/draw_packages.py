"""Draws packages and their imports as Mermaid diagrams: `draw_packages.py [--check]`.

Writes docs/internals/packages.md from the import graph. An arrow points from the importer to
the imported package. Arrows implied by a longer path are left out for readability.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import grimp

PAGE = Path(__file__).parents[1] / "docs" / "internals" / "packages.md"
PICTURES = {
    "The operator and the command": ("raggrpo_cli", "raggrpo_operator", "raggrpo_api"),
    "The trainer and its retriever": (
        "raggrpo_trainer",
        "raggrpo_retriever",
        "raggrpo_quickstart",
        "raggrpo_api",
    ),
}
DEPTHS = {
    "raggrpo_api": 1,
    "raggrpo_quickstart": 1,
    "raggrpo_retriever": 1,
    "raggrpo_operator.core": 3,
    "raggrpo_operator.kubernetes_runtime": 3,
}
"""How many parts of a module's name make its box, by the beginning of the name; else two."""
HEADER = """\
# Packages and their imports

Made by `make picture` from the import graph; `make verify` fails when it is out of date. An arrow
points from the importer to what it imports; one that a longer path implies is left out.
"""


def box_of(module: str) -> str:
    """Return the box that a module is drawn in."""
    parts = module.split(".")
    depth = DEPTHS.get(parts[0]) or DEPTHS.get(".".join(parts[:2]), 2)
    return ".".join(parts[:depth])


def arrows(graph: grimp.ImportGraph, roots: Iterable[str]) -> dict[str, set[str]]:
    """Return which box imports which others."""
    found: dict[str, set[str]] = {}
    for module in sorted(graph.modules):
        if module.split(".")[0] not in roots:
            continue
        imported = graph.find_modules_directly_imported_by(module)
        inside = {box_of(name) for name in imported if name.split(".")[0] in roots}
        found.setdefault(box_of(module), set()).update(inside - {box_of(module)})
    used = set[str]().union(*found.values())
    return {box: targets for box, targets in found.items() if targets or box in used}


def reduced(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Leave out every arrow that a longer path implies; packages import each other in no circle."""

    @cache
    def below(box: str) -> frozenset[str]:
        return frozenset(edges[box]).union(*(below(each) for each in edges[box]))

    return {
        box: {each for each in targets if not any(each in below(other) for other in targets)}
        for box, targets in edges.items()
    }


def diagram(graph: grimp.ImportGraph, roots: tuple[str, ...]) -> str:
    """Return one Mermaid diagram."""
    edges = reduced(arrows(graph, roots))
    text = ["```mermaid", "flowchart TD"]
    for root in roots:
        text.append(f'  subgraph {root}_group["{root}"]')
        boxes = sorted(box for box in edges if box.split(".")[0] == root)
        text += [f'    {_id(box)}["{box.removeprefix(f"{root}.")}"]' for box in boxes]
        text.append("  end")
    text += [f"  {_id(a)} --> {_id(b)}" for a in sorted(edges) for b in sorted(edges[a])]
    return "\n".join([*text, "```"])


def _id(box: str) -> str:
    return box.replace(".", "_")


def main() -> None:
    """Write the page, or fail with --check when it is out of date."""
    graph = grimp.build_graph(*sorted({root for roots in PICTURES.values() for root in roots}))
    parts = [f"## {title}\n\n{diagram(graph, roots)}\n" for title, roots in PICTURES.items()]
    page = "\n".join([HEADER, *parts])
    if "--check" not in sys.argv:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        raise SystemExit(f"{PAGE} is out of date: run make picture")


if __name__ == "__main__":
    main()
