"""What a suspicious text tries to make the model do, in one sentence for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_INTENTS: Mapping[str, str] = {
    "exfiltration": "send private data somewhere else",
    "agent_instruction_override": "ignore the instructions it was given",
    "agent_instruction": "follow orders that the text gives it",
    "impersonation": "take the text for a message of the system or the user",
    "steering": "do something that the user did not ask for",
    "encoded_payload": "decode and follow encoded text",
    "hidden_characters": "read characters that a person does not see",
    "hidden_control_characters": "read characters that a person does not see",
    "terminal_escape": "work with text that a terminal shows differently",
    "homoglyph": "take look-alike letters for ordinary ones",
    "lookalike_name": "take the tool for another one",
    "duplicate_tool_name": "take the tool for another one",
    "tool_shadowing": "use another server's tool differently",
    "concealment": "hide something from the user",
    "agent_hidden_behavior": "hide something from the user",
}
"""By code of a warning, from what is done to how it is hidden."""


def describe_intent(codes: Iterable[str]) -> str | None:
    """The sentence for the warnings about one text; None if the messages of the warnings say it themselves."""
    given = set(codes)
    if not given or given == {"steering"} or not given <= _INTENTS.keys():
        return None
    if given - {"steering"}:
        given.discard("steering")
    # Nearly every attack is also an order, which says nothing more.
    if given - {"agent_instruction", "concealment", "agent_hidden_behavior"}:
        given.discard("agent_instruction")
    phrases = list(dict.fromkeys(phrase for code, phrase in _INTENTS.items() if code in given))
    listed = phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
    return f"This text tries to make the model {listed}."
