"""A parser process without vLLM, whose name of the tool parser selects how it fails."""

import json
import os
import sys
import time
from pathlib import Path

folder, kind = Path(sys.argv[1]), sys.argv[2]
starts = len(list(folder.iterdir()))
(folder / str(starts)).touch()
if kind == "exits-at-start":
    sys.exit(3)
if kind == "unknown":
    print(json.dumps({"problem": "TypeError: no such parser"}))
    sys.exit(0)
print("{}", flush=True)
for line in sys.stdin:
    text = json.loads(line)["text"]
    if text == "hangs":
        time.sleep(600)
    if text == "exits" or (text == "exits once" and starts == 0):
        os._exit(9)
    if text == "slow":
        time.sleep(0.3)
    if text == "raises":
        print(json.dumps({"problem": "ValueError: no call"}), flush=True)
        continue
    calls = [{"name": "f", "arguments": "{}", "id": ""}]
    parts = {"content": text, "reasoning": "r", "tool_calls": calls, "problem": ""}
    print(json.dumps(parts), flush=True)
