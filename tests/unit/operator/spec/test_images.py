import pytest

from raggrpo_api.status.job_status import Pinned
from raggrpo_operator.core.spec.images import are_different, image_id, pin_digest

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
REPORTED = {
    f"docker-pullable://r.example/team/trainer@{ONE}": f"r.example/team/trainer@{ONE}",
    f"r.example/team/trainer@{ONE}": f"r.example/team/trainer@{ONE}",
    f"docker://{ONE}": ONE,
    f"r.example/library/import-2026-11-21@{ONE}": f"r.example/library/import-2026-11-21@{ONE}",
    ONE: ONE,
    "": "",
    "r.example/team/trainer:1": "",
    f"{ONE} and more": "",
}


@pytest.mark.parametrize(("reported", "known"), REPORTED.items())
def test_image_id_is_parsed_from_all_kubelet_formats(reported: str, known: str) -> None:
    assert image_id(reported) == known


@pytest.mark.row("C13")
@pytest.mark.parametrize(
    ("image", "known", "given"),
    [
        (
            "r.example/team/trainer:1",
            f"r.example/team/trainer@{ONE}",
            f"r.example/team/trainer:1@{ONE}",
        ),
        (
            "localhost:5000/trainer",
            f"localhost:5000/trainer@{ONE}",
            f"localhost:5000/trainer@{ONE}",
        ),
        ("trainer:1", f"r.example/library/trainer@{ONE}", f"trainer:1@{ONE}"),
        ("team/trainer:1", f"r.example/team/trainer@{ONE}", f"team/trainer:1@{ONE}"),
        # No registry has these digests under the image's name.
        ("trainer:1", ONE, "trainer:1"),
        ("trainer:1", f"r.example/library/import-2026-11-21@{ONE}", "trainer:1"),
        ("trainer:1", "", "trainer:1"),
        # The user has named one already.
        (f"trainer@{TWO}", f"r.example/library/trainer@{ONE}", f"trainer@{TWO}"),
    ],
)
def test_pinned_image_is_requested_by_digest(image: str, known: str, given: str) -> None:
    assert pin_digest(image, Pinned(image=image, image_id=known)) == given


def test_unpinned_image_is_requested_by_name() -> None:
    pinned = Pinned(image="trainer:1", image_id=f"r.example/library/trainer@{ONE}")

    assert pin_digest("trainer:2", pinned) == "trainer:2"


def test_image_ids_differ_only_if_comparable_digests_differ() -> None:
    assert are_different(ONE, TWO)
    assert are_different(f"a@{ONE}", f"a@{TWO}")
    assert not are_different(f"a@{ONE}", f"import-of-another-day@{ONE}")
    assert are_different(ONE, f"a@{TWO}") is False
