"""Links the results of earlier tool calls to the calls: templates look names and ids up.

Knows checked chat messages; knows nothing of templates.
"""

from typing import Any


def link_results(messages: list[dict[str, Any]]) -> None:
    """Gives calls without an id one, and results without an id that of their call, in order.

    A result also gets the name of the function that was called, where it names none.
    """
    made = 0
    names: dict[str, str] = {}
    unanswered: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            unanswered = []
            for call in message.get("tool_calls", ()):
                call["id"] = call["id"] or f"call_{made}"
                made += 1
                names[call["id"]] = call["function"]["name"]
                unanswered.append(call["id"])
        elif message["role"] == "tool":
            if "tool_call_id" not in message and unanswered:
                message["tool_call_id"] = unanswered[0]
            call_id = message.get("tool_call_id", "")
            if call_id in unanswered:
                unanswered.remove(call_id)
            if call_id in names:
                message.setdefault("name", names[call_id])
