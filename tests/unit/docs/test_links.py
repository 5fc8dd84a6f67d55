"""Links and paths to documentation pages resolve."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PAGE_PATH = re.compile(r"\bdocs/[\w./-]+\.(?:md|yaml|png)\b")
SOURCE_PATH = re.compile(r"\b(?:tests|scripts|crds|helm)/[\w./-]+\.(?:py|sh|yaml|txt)\b")
SOURCE_ROOTS = (
    ".",
    "helm/raggrpo-operator",
    "operator",
    "operator/raggrpo_operator",
    "operator/raggrpo_operator/core/lifecycle",
    "operator/raggrpo_operator/kubernetes_runtime",
    "trainer_image",
    "trainer_image/raggrpo_trainer",
)
BINARY = {".png", ".ico", ".parquet"}


def tracked_files(*patterns: str) -> list[Path]:
    """Return the files of the repository that match, without those that are ignored by git."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return [path for name in listing.stdout.splitlines() if (path := ROOT / name).is_file()]


def heading_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in words}


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page whose file or heading does not exist."""
    broken = []
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        is_missing = not target.exists()
        if is_missing or (anchor and target.is_file() and anchor not in heading_anchors(target)):
            broken.append(f"{page.relative_to(ROOT)}: {link}")
    return broken


def test_links_between_pages_resolve() -> None:
    assert [link for page in tracked_files("*.md") for link in broken_links(page)] == []


def test_documented_page_paths_exist() -> None:
    missing = [
        f"{file.relative_to(ROOT)}: {path}"
        for file in tracked_files()
        if file.suffix not in BINARY
        for path in PAGE_PATH.findall(file.read_text(encoding="utf-8", errors="ignore"))
        if not (ROOT / path).exists()
    ]
    assert missing == []


def test_documented_source_paths_exist() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in tracked_files("*.md")
        for path in SOURCE_PATH.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    ]
    assert missing == []


def test_documented_make_targets_exist() -> None:
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    )
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in tracked_files("*.md")
        for words in re.findall(r"`make ([a-z0-9 -]+)", page.read_text(encoding="utf-8"))
        for target in words.split()
        if target not in targets
    ]
    assert missing == []


def test_architecture_modules_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`([\w-]+(?:/[\w.-]+)+/?)`", page))
    modules = set(re.findall(r"`(\w+\.py)`", page)) - {path.name for path in tracked_files("*.py")}

    assert [path for path in sorted(paths) if not is_source(path)] == []
    assert modules == set()


def is_source(path: str) -> bool:
    """Return whether the path exists below one of the packages' folders."""
    return any((ROOT / root / path).exists() for root in SOURCE_ROOTS)
