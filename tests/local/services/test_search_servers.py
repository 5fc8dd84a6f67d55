"""Protocol Http against third-party search servers, with the recipes from the docs."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from raggrpo_api.spec.retrieval import RetrievalEndpoint, RetrievalSpec
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.retrieval.passage import Passage
from tools.search.servers import txtai, weaviate

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "use-your-retrieval-service.md"
TEXTS = (
    "Tea is a drink made of leaves.",
    "Loans cost five percent a year.",
    'A "quoted" question {with} braces & signs.',
)


def make_recipe(host: str, url: str) -> RetrievalEndpoint:
    """Return the documented endpoint for `host`, with the URL of a real server."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [[raw]] = [yaml.safe_load(block) for block in blocks if f"//{host}:" in block]
    raw["url"] = re.sub(rf"http://{host}:\d+", url, raw["url"])
    return RetrievalEndpoint.model_validate(raw)


async def search(endpoint: RetrievalEndpoint, *queries: str) -> list[tuple[Passage, ...]]:
    async with RetrievalClient(RetrievalSpec(endpoints=[endpoint]), {}) as client:
        return [await client.retrieve("kb", query, sample="1") for query in queries]


def fill_weaviate(url: str) -> None:
    made: dict[str, Any] = {
        "class": "Passage",
        "vectorizer": "none",
        "properties": [{"name": "text", "dataType": ["text"]}],
    }
    httpx.post(f"{url}/v1/schema", json=made).raise_for_status()
    for text in TEXTS:
        added = {"class": "Passage", "properties": {"text": text}}
        httpx.post(f"{url}/v1/objects", json=added).raise_for_status()


def fill_txtai(url: str) -> None:
    rows = [{"id": f"p{number}", "text": text} for number, text in enumerate(TEXTS)]
    httpx.post(f"{url}/add", json=rows, timeout=60).raise_for_status()
    httpx.get(f"{url}/index", timeout=60).raise_for_status()


@pytest.mark.row("D7")
async def test_weaviate_recipe_returns_passages(tmp_path: Path) -> None:
    with weaviate(tmp_path) as url:
        fill_weaviate(url)
        tea, loans, quoted, nothing = await search(
            make_recipe("weaviate", url), "tea leaves", "loans", '"quoted" {braces}', "zzz"
        )
    assert [each.text for each in tea] == [TEXTS[0]]
    assert len(tea[0].id) == 36
    assert tea[0].score > 0
    assert [each.text for each in loans] == [TEXTS[1]]
    assert [each.text for each in quoted] == [TEXTS[2]]
    assert nothing == ()


@pytest.mark.row("D7")
async def test_txtai_recipe_returns_passages(tmp_path: Path) -> None:
    with txtai(tmp_path) as url:
        fill_txtai(url)
        tea, quoted, nothing = await search(
            make_recipe("txtai", url), "tea & leaves", '"quoted" {braces}', "zzz"
        )
    assert [(each.id, each.text) for each in tea] == [("p0", TEXTS[0])]
    assert 0 < tea[0].score <= 1
    assert [each.id for each in quoted] == ["p2"]
    assert nothing == ()
