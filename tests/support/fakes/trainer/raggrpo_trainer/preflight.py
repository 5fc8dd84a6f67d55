"""A fake preflight with the result from FAKE_TRAINER: `check`, `evidence`, `exit_code`, `hang`."""

import json
import os
import sys
import time
from pathlib import Path

from raggrpo_api import names
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, Facts, PreflightResult

ORDERS = json.loads(os.environ.get("FAKE_TRAINER", "{}"))
if ORDERS.get("hang"):
    time.sleep(1000)
if ORDERS.get("broken"):
    sys.exit("preflight is broken on order")
result = PreflightResult(facts=Facts(parameters=1000, context_length=4096, rows=10_000))
if "check" in ORDERS:
    failed = Check(
        id=CheckId(ORDERS["check"]), state=CheckState.FAILED, evidence=ORDERS["evidence"]
    )
    result = result.model_copy(update={"checks": [failed], "exit_code": ORDERS["exit_code"]})
Path(os.environ[names.ENV_PREFLIGHT_OUTPUT]).write_text(result.model_dump_json(by_alias=True))
