import pytest

from raggrpo_api.weight_formats import conversion_remedy

SHARDS = ["config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (SHARDS, "from_pretrained('org/name').save_pretrained('converted')"),
        (["pytorch_model.bin", "model.gguf", "model.onnx"], "convert the .bin files"),
        (["model.Q4_K_M.GGUF"], "use the model from which these files were made"),
        (["onnx/model.onnx"], "use the model from which these files were made"),
        (["consolidated.00.pth"], "with the program that wrote them"),
        (["last.ckpt"], "with the program that wrote them"),
        (["model.pt"], "with the program that wrote them"),
        (["config.json"], "save the model with save_pretrained()"),
    ],
)
def test_remedy_depends_on_the_format(names: list[str], words: str) -> None:
    assert words in conversion_remedy(names, "org/name")
