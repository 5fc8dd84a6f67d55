import subprocess
import sys


def test_the_driver_begins_without_the_libraries_that_take_seconds_to_import() -> None:
    code = (
        "import sys, raggrpo_trainer.driver.attempt\n"
        "print(sorted({'torch', 'transformers', 'vllm'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "[]"
