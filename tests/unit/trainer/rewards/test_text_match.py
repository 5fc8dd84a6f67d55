import pytest

from raggrpo_trainer.rewards.text_match import contains, exact_match, f1, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Well-known U.S. president!", ["wellknown", "us", "president"]),
        ("an apple, a day; theatre", ["apple", "day", "theatre"]),
        ("贷款利率4.5%", ["贷", "款", "利", "率", "4.5"]),
        ("你好，“世界”。", ["你", "好", "世", "界"]),
        ("$5 + 3=8", ["5", "3=8"]),
        ("It is 1,000.50.", ["it", "is", "1000.50"]),
        ("-5, \u22125 or 3-5; 1/2 of U.S. $1.", ["-5", "-5", "or", "3-5", "1/2", "of", "us", "1"]),
        ("iPhone手机", ["iphone", "手", "机"]),
        ("ひらカ", ["ひ", "ら", "カ"]),
        ("A", ["a"]),
        ("The a.", ["the", "a"]),
        ("?!", ["?!"]),
        (" ", []),
    ],
)
def test_tokens_are_normalized_words_and_cjk_characters(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".5, -.5, $.5 and No.5", ["0.5", "-0.5", "0.5", "and", "no5"]),
        ("1e-3 or 1E\u22123", ["1e-3", "or", "1e-3"]),
        ("10^-3; 3:4; 2*3; 1,2; 2024-05-01", ["10^-3", "3:4", "2*3", "1,2", "2024-05-01"]),
        ("-$5, \uff0d5 or \u20135", ["-5", "-5", "or", "-5"]),
        ("1.e-3, 1.e3, 5. and 1.E+3", ["1e-3", "1e3", "5", "and", "1e3"]),
        ("\u20145, \u20155, - 5 or x = -  $5", ["-5", "-5", "5", "or", "x", "-5"]),
        ("- .5", ["-0.5"]),
        ("答案——5", ["答", "案", "5"]),
        (
            "list:\n- 5; 3 - 5 - x and yes \u2014 no",
            ["list", "5", "3", "5", "x", "and", "yes", "no"],
        ),
        ("3\u22364; \uff13\uff1a\uff14; 3\uff0e14", ["3:4", "3:4", "3.14"]),
        ("等于-5，或.5", ["等", "于", "-5", "或", "0.5"]),
        ("1,00,000 and 1'000'000", ["100000", "and", "1000000"]),
        ("1,5 and 12,3456", ["1,5", "and", "12,3456"]),
        ("0,875", ["0,875"]),
        ("\uff11\uff0c\uff10\uff10\uff10", ["1000"]),
        ("\uff27\uff24\uff30 \uff76\uff9e", ["gdp", "ガ"]),
        ("<5, >=-5, x>.5; <b>5</b>", ["<5", ">=-5", "x>0.5", "b5b"]),
        ("\ufe635 3\ufe5214", ["-5", "3.14"]),
        ("x\u00b2 \u00bd", ["x\u00b2", "\u00bd"]),
        ("**5** [covid-19]", ["5", "covid19"]),
    ],
)
def test_tokens_keep_punctuation_of_numbers_and_fold_width(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("The Eiffel Tower.", ["Eiffel tower"], 1.0),
        ("Paris", ["London", "paris!"], 1.0),
        ("Paris, France", ["Paris"], 0.0),
        ("利 率", ["利率"], 1.0),
        ("A", ["B"], 0.0),
        ("cafe\u0301", ["caf\u00e9"], 1.0),
        ("314", ["3.14"], 0.0),
        ("-5", ["5"], 0.0),
        ("1.e-3", ["1.e3"], 0.0),
        ("1.e3", ["1e3"], 1.0),
        ("\u20145", ["5"], 0.0),
        ("\u20155", ["5"], 0.0),
        ("- 5", ["5"], 0.0),
        ("- 5", ["-5"], 1.0),
        ("\u2014\u2014", ["\u2014\u2014"], 1.0),
        ("+", ["-"], 0.0),
        ("-", ["-"], 1.0),
        (".", [""], 0.0),
        ("", [" "], 0.0),
        ("", ["Paris"], 0.0),
        ("Paris", [], 0.0),
    ],
)
def test_exact_match_reward_compares_normalized_text(
    text: str, answers: list[str], expected: float
) -> None:
    assert exact_match(text, answers) == expected


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        # 1 common token: precision 1/3, recall 1/2.
        ("red apple tree", ["apple pie"], 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2)),
        # A repeated token counts as often as both have it: 2 of 3 and 2 of 2.
        ("no no no", ["no no"], 2 * (2 / 3) * 1 / (2 / 3 + 1)),
        # By characters: 利率 of 年利率, precision 2/2, recall 2/3.
        ("利率", ["年利率"], 0.8),
        ("apple", ["pear", "apple"], 1.0),
        ("apple", ["pear"], 0.0),
        ("", ["pear"], 0.0),
        ("apple", [], 0.0),
    ],
)
def test_f1_reward_equals_hand_computed_values(
    text: str, answers: list[str], expected: float
) -> None:
    assert f1(text, answers) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("It is the Eiffel Tower, of course.", ["Eiffel Tower"], 1.0),
        ("because", ["us"], 0.0),
        ("code 123", ["12"], 0.0),
        ("Tower of Eiffel", ["Eiffel Tower"], 0.0),
        ("年利率是百分之四", ["利率"], 1.0),
        ("x", ["y", "X"], 1.0),
        ("anything", ["!"], 0.0),
        ("", [""], 0.0),
    ],
)
def test_contains_reward_requires_whole_tokens_in_order(
    text: str, answers: list[str], expected: float
) -> None:
    assert contains(text, answers) == expected
