"""`python -m raggrpo_trainer.gateway.parser_process MODEL TOOL_PARSER REASONING_PARSER`.

Parses replies with vLLM's parsers, as its server does. A reply is one line of JSON on standard
input, its parts one line on standard output. The first line reports that the process is ready.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from raggrpo_trainer.data.tokenizer import load_tokenizer

DETAIL_CHARACTERS = 500
Parse = Callable[[Mapping[str, Any]], dict[str, Any]]


class LoggedErrors(logging.Handler):
    """The errors of parsers, which log them and return the text as content."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Add an error."""
        error = record.exc_info[1] if record.exc_info else None
        cause = f" ({type(error).__name__}: {error})" if error else ""
        self._errors.append(f"{record.getMessage()}{cause}"[:DETAIL_CHARACTERS])

    def take(self) -> str:
        """Return the first error since the last call, or an empty text."""
        first = self._errors[0] if self._errors else ""
        self._errors.clear()
        return first


def load_parser(model_path: str, tool_parser: str, reasoning_parser: str) -> Parse:
    """Return the function that parses replies. Raises exceptions of any type."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser import ParserManager

    errors = LoggedErrors()
    logging.getLogger("vllm").addHandler(errors)
    tokenizer = load_tokenizer(model_path)
    parser_class = ParserManager.get_parser(
        tool_parser_name=tool_parser or None,
        reasoning_parser_name=reasoning_parser or None,
        enable_auto_tools=True,
        tokenizer=tokenizer,
    )

    def parse(reply: Mapping[str, Any]) -> dict[str, Any]:
        tools = {"tools": reply["tools"], "tool_choice": "auto"} if reply["tools"] else {}
        request = ChatCompletionRequest(
            messages=[], chat_template_kwargs=reply["template_variables"], **tools
        )
        parser = parser_class(
            tokenizer, request.tools, chat_template_kwargs=reply["template_variables"]
        )
        errors.take()
        parser.set_prompt_token_ids(reply["prompt_ids"])
        reasoning, content, calls = parser.parse(
            reply["text"],
            request,
            enable_auto_tools=True,
            model_output_token_ids=reply["token_ids"],
        )
        return {
            "reasoning": reasoning or "",
            "content": content or "",
            "tool_calls": [_call(each, reply["text"]) for each in calls or ()],
            "problem": errors.take(),
        }

    return parse


def _call(call: Any, text: str) -> dict[str, str]:
    """Return a call; ids that the text does not contain are random numbers of the parser."""
    own_id = call.id if call.id and call.id in text else ""
    return {"name": call.name, "arguments": call.arguments or "", "id": own_id}


def _outcome(parse: Parse, line: str) -> dict[str, Any]:
    try:
        return parse(json.loads(line))
    except Exception as error:  # parsers fail in any way for text that they do not expect
        return _problem(error)


def _problem(error: BaseException) -> dict[str, Any]:
    return {"problem": f"{type(error).__name__}: {error}"[:DETAIL_CHARACTERS]}


def main() -> None:
    """Serve replies from standard input until it closes."""
    with os.fdopen(os.dup(1), "w", buffering=1) as results:
        os.dup2(2, 1)  # vLLM prints
        try:
            parse = load_parser(*sys.argv[1:4])
        except Exception as error:  # vLLM reports unsuitable tokenizers by errors of many types
            results.write(json.dumps(_problem(error)) + "\n")
            return
        results.write("{}\n")
        for line in sys.stdin:
            results.write(json.dumps(_outcome(parse, line)) + "\n")


if __name__ == "__main__":
    main()
