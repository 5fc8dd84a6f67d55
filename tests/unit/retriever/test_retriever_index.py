import math

import pytest

from raggrpo_retriever.corpus import Passage
from raggrpo_retriever.index import Bm25Index, Hit, tokenize


def make_passages(*texts: str) -> list[Passage]:
    return [Passage(str(number), text) for number, text in enumerate(texts)]


def ids(hits: list[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, WORLD-wide 42!", ["hello", "world", "wide", "42"]),
        ("客户画像", ["客户", "户画", "画像"]),
        ("猫", ["猫"]),
        ("买iPhone15手机", ["买", "iphone15", "手机"]),
        ("ひらカナ", ["ひら", "らカ", "カナ"]),
        ("Ärger, naïve", ["ärger", "naïve"]),
        ("?! …", []),
    ],
)
def test_tokens_are_lower_cased_words_and_cjk_bigrams(text: str, tokens: list[str]) -> None:
    assert list(tokenize(text)) == tokens


def test_bm25_scores_equal_hand_computed_values() -> None:
    index = Bm25Index(make_passages("red apple", "green apple tree", "blue sky"))
    [hits] = index.search(["apple"], top_k=3)

    # idf = ln(1 + (3 - 2 + 0.5) / (2 + 0.5)); mean length 7/3
    # tf factor 1 / (1 + k1 (1 - b + b l/m))
    idf = math.log(1 + 1.5 / 2.5)
    short = idf / (1 + 1.5 * (0.25 + 0.75 * 2 / (7 / 3)))
    long = idf / (1 + 1.5 * (0.25 + 0.75 * 3 / (7 / 3)))
    assert ids(hits) == ["0", "1"]
    assert [hit.score for hit in hits] == pytest.approx([short, long], rel=1e-6)


def test_passages_without_query_token_are_not_returned() -> None:
    index = Bm25Index(make_passages("red apple", "blue sky"))
    assert [ids(hits) for hits in index.search(["sky", "ocean", ""], top_k=5)] == [["1"], [], []]


def test_chinese_query_matches_part_of_sentence() -> None:
    index = Bm25Index(make_passages("保险产品的客户画像", "今天天气很好", "贷款利率说明"))
    assert ids(index.search(["他想了解贷款的利率"], top_k=1)[0]) == ["2"]


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 9])
def test_passages_with_equal_scores_are_returned_in_corpus_order(top_k: int) -> None:
    index = Bm25Index(make_passages("tea", "rare tea", "tea", "tea", "coffee", "tea"))
    [hits] = index.search(["rare tea"], top_k)
    assert ids(hits) == ["1", "0", "2", "3", "5"][:top_k]
