"""Grades in judges' texts: the number of the statement that gives the grade."""

import pytest

from raggrpo_trainer.rewards.grade_text import grades_in


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the statement with a label
        ("Grade: 8. Key points: 1.", 8),
        ("Grade: 7. The answer missed 2 facts.", 7),
        ("**Grade**: 9\n1. correct\n2. concise", 9),
        ("1. Correct: yes\n2. Complete: no\nScore: 6", 6),
        ("Previous grade: 5. Grade: 8", 8),
        ("Grade: 8 because 2 facts are missing", 8),
        ("I considered 3 and 7. Grade: 5", 5),
        ("The score for this answer is 7", 7),
        ("3 of 4 facts, so the grade is 7", 7),
        ("Points: 7", 7),
        ("The first 2 facts are right, the other 3 facts are wrong. Score: 7", 7),
        ("I updated 2 facts. Score: 7", 7),
        ("Covers 1/2 of the facts. Score: 7", 7),
        ("Rating: [[5]]", 5),
        ("<score>8</score>", 8),
        ("Grade - 7", 7),
        ("Score = 5", 5),
        ("# Grade\n8", 8),
        # a final grade
        ("Score for style: 3. Final score is 8.5", 8.5),
        ("Style score: 3. Facts score: 4. Overall score: 6", 6),
        # a revised grade
        ("Score: 5 -> revised score: 7", 7),
        ("Score: 5. Updated grade is 7.", 7),
        ("Score: 5, revised: 7", 7),
        # the statement of the judge
        ("The maximum score is 10. I give 7.", 7),
        ("A score of 10 would need sources. I give 7.", 7),
        ("The student could score 10 but I give 7", 7),
        ("I'd rate it a 9", 9),
        ("Correct answers get 10. This one gets 4.", 4),
        # the scale is not the grade
        ("Score: 8/10", 8),
        ("7/10. Missing: 2 facts", 7),
        ("Score: 8/10 (accuracy 9/10, style 7/10)", 8),
        ("Score: 3 out of 10", 3),
        ("8 out of a possible 10", 8),
        ("Score (0-10): 8", 8),
        ("Score (1–10): 8", 8),
        ("On a scale of 0 to 10 I give 7", 7),
        ("On a 0-10 scale: 7", 7),
        ("on a 10-point scale I give 7", 7),
        ("0/10", 0),
        ("Not 3 but 7", 7),
        ("The grade is 8 (scale 0-10).", 8),
        ("The minimum is 0, maximum 10; grade 4", 4),
        ("I am 90% sure. 7", 7),
        # numbers
        ("7,5", 7.5),
        ("Grade: .5", 0.5),
        ("Grade: -1", -1),
        ("总分：８．５", 8.5),
        ("满分10分，我给8分", 8),
        ("评分：8分", 8),
        ("7 - a clear 7", 7),
    ],
)
def test_grade_is_number_of_statement_that_gives_it(text: str, expected: float) -> None:
    assert grades_in(text, 0.0, 10.0) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "either 3 or 7",
        "Between 2 and 4, so 3",
        "Score: 7-8",
        "Grade: 7 or 8",
        "Grade: 7 to 8.",
        "Grade: 3. Wait, grade: 5",
        "Style score: 3. Facts score: 4.",
        "I give 7 points for accuracy and 2 for style",
        "Score: 5 -> 7",
        "Score: 5 \u2192 7",
        "Score: 5, raised to 7",
        "Score: 5, revised to 7",
        "Score: 5. Actually, 7.",
        "Score: 5 - make that a 7",
        "The first answer deserves 3, the second 9",
        "The first deserves 3 and the second one 9.",
        "Answer A gets 3, B 9",
        "Answer 1 gets 3/10, answer 2: 9/10",
    ],
)
def test_several_possible_grades_are_returned(text: str) -> None:
    assert len(grades_in(text, 0.0, 10.0)) > 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No idea.",
        "gpt4 says fine",
        "Score: eight",
        "Score: 4/5",
        "The score is not 10.",
        "The maximum is 10.",
        "7\u00bd",
        "Score: 7 \u00bd. Key points: 1.",
        "I give 7 1/2",
        "Score: 2\u00b3",
    ],
)
def test_text_without_grade_has_no_grade(text: str) -> None:
    assert grades_in(text, 0.0, 10.0) == []


@pytest.mark.parametrize(
    ("text", "scale", "expected"),
    [
        ("1,000", (0.0, 2000.0), 1000.0),
        ("80%", (0.0, 100.0), 80.0),
        ("4/5", (1.0, 5.0), 4.0),
        ("-0.5", (-1.0, 1.0), -0.5),
        ("0,875", (0.0, 1.0), 0.875),
    ],
)
def test_grade_is_read_on_its_scale(text: str, scale: tuple[float, float], expected: float) -> None:
    assert grades_in(text, *scale) == [expected]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "part", ["*", " ", "score ", "I give ", "1", "1,", "1,000,", "8/10 ", "- ", "0-", "score is "]
)
def test_long_text_is_searched_in_linear_time(part: str) -> None:
    grades_in(part * (16_384 // len(part)), 0.0, 10.0)
