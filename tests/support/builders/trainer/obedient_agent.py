"""An agent that kills processes in the middle of its trajectories, as ordered by a test.

An order is a file in the folder DRILL with the process id of the victim. The next process of the
application that has received a completion takes the order and obeys it.
"""

OWN_PROCESS = 0
"""Process id that means the process of the application."""
APPLICATION = '''
"""Two turns of one conversation, one streamed, and a question of a separate one."""
import os
import random
import signal
import time
from pathlib import Path

import httpx
from openai import AuthenticationError, OpenAI

orders = Path(os.environ["DRILL"])
client = OpenAI(max_retries=0, timeout=3)
if (orders / "shuffle").exists():
    (orders / f"key-{os.getppid()}-{os.getpid()}").write_text(client.api_key)


def ask(messages, stream=False):
    if (orders / "shuffle").exists():
        time.sleep(random.uniform(0, 0.1))
    reply = client.chat.completions.create(model="any", messages=messages, stream=stream)
    if not stream:
        return reply.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in reply)


def ordered(name):
    """Return the text of an order, or None; each order is given to one application."""
    claimed = orders / f"claimed-{name}-{os.getpid()}"
    try:
        os.rename(orders / name, claimed)
    except FileNotFoundError:
        return None
    return claimed.read_text()


def obey(messages):
    if victim := ordered("kill"):
        os.kill(int(victim) or os.getpid(), signal.SIGKILL)
    if victim := ordered("kill, then disconnect"):
        os.kill(int(victim), signal.SIGKILL)
        url = f"{client.base_url}chat/completions"
        headers = {"Authorization": f"Bearer {client.api_key}"}
        body = {"model": "any", "messages": messages}
        with httpx.stream("POST", url, json=body, headers=headers, timeout=3) as response:
            started = time.monotonic()
            for _ in response.iter_raw():
                if time.monotonic() > started + 1.5:
                    raise TimeoutError("the client stopped waiting")
    if ordered("old keys"):
        for file in {*orders.glob("key-*")} - {*orders.glob(f"key-{os.getppid()}-*")}:
            status(OpenAI(api_key=file.read_text(), max_retries=0))


def status(old):
    try:
        old.chat.completions.create(model="any", messages=[{"role": "user", "content": "w1"}])
        code = 200
    except AuthenticationError as error:
        code = error.status_code
    with (orders / "statuses").open("a") as file:
        file.write(f"{code}\\n")


def answer(question):
    messages = [{"role": "user", "content": question}]
    messages.append({"role": "assistant", "content": ask(messages, stream=True)})
    messages.append({"role": "user", "content": " and ?"})
    obey(messages)
    final = ask(messages)
    if len(question) % 2:
        ask([{"role": "user", "content": final}])
    return final
'''
