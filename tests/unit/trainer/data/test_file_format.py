import pytest

from raggrpo_trainer.data.file_format import likely_encoding, wide_encoding


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_wide_encoding_is_recognized_with_and_without_mark(encoding: str) -> None:
    assert wide_encoding('{"prompt": "q"}'.encode(encoding)) == encoding[:6].upper()


@pytest.mark.parametrize("start", [b"", b"{", b'{"prompt": "q"}', b"\xef\xbb\xbf{}", b"\n\n"])
def test_utf8_is_not_a_wide_encoding(start: bytes) -> None:
    assert wide_encoding(start) == ""


@pytest.mark.row("D16")
@pytest.mark.parametrize(
    ("text", "encoding", "expected"),
    [
        ("你好", "gbk", "GBK"),
        ("café, naïve", "cp1252", "Windows-1252"),
        ("\xff\xff\xff", "latin-1", ""),
    ],
)
def test_likely_encoding_distinguishes_single_and_double_bytes(
    text: str, encoding: str, expected: str
) -> None:
    assert likely_encoding(text.encode(encoding)) == expected
