"""Calls whose result comes later: ``tasks/result`` in 2025-11-25, ``tasks/get`` in the extension of 2026-07-28.

A task is known by an id that the server chose when the tool was called. Whoever fetches the result gets the result of
that tool, so the tool has to be approved then too.
"""

from __future__ import annotations

from collections.abc import Container
from threading import Lock
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway import splice
from pinwarden.gateway.ambiguity import is_ambiguous_task

TASK_METHODS = frozenset({"tasks/get", "tasks/result", "tasks/update"})
"""The methods by which a client gets the result of a task, or goes on with it."""
CANCEL_TASK = "tasks/cancel"
"""For one's own tasks this is always fine, whatever became of the tool."""
LIST_TASKS = "tasks/list"
TASK_NOTIFICATIONS = frozenset({"notifications/tasks", "notifications/tasks/status"})
"""The notifications in which a server tells how a task is doing; the first holds its result."""
_MAX_TASKS = 10_000  # tasks of one client that are remembered; the oldest are forgotten, and then unknown
_MAX_ID_LENGTH = 1024  # letters of an id


class Tasks:
    """Which tool each task is a call of. Tasks outlive sessions, so all sessions of a server share this.

    To a remote server all clients of the gateway are one, so it cannot keep their tasks apart; here a task is known to
    the client that called the tool, and to no other.
    """

    def __init__(self) -> None:
        self._tools: dict[str, dict[str, frozenset[str]]] = {}
        """By client."""
        self._lock = Lock()

    def remember(self, result: Any, tool: str, client: str = "") -> None:
        """Learn from the answer to a call whether it became a task, in either form."""
        for each in (result, result.get("task") if type(result) is dict else None):
            task = each.get("taskId") if type(each) is dict else None
            if type(task) is str and len(task) <= _MAX_ID_LENGTH:
                with self._lock:
                    own = self._tools.setdefault(client, {})
                    known = own.pop(task, frozenset())
                    own[task] = known | {tool}  # a server may give one id twice; then both tools count
                    if len(own) > _MAX_TASKS:
                        del own[next(iter(own))]

    def tools_of(self, task: str, client: str = "") -> frozenset[str]:
        """The tools that a task of a client may be a call of; none if it is not known."""
        return self._tools.get(client, {}).get(task, frozenset())

    def is_of_another(self, task: str, client: str) -> bool:
        """Whether a task is known to be one of another client, and not of this one too."""
        with self._lock:
            owners = [owner for owner, own in self._tools.items() if task in own]
        return bool(owners) and client not in owners


def listed_tasks(result: Any) -> list[str]:
    """The ids of the tasks that the answer to ``tasks/list`` holds, in its order."""
    tasks = result.get("tasks") if type(result) is dict else None
    if type(tasks) is not list:
        raise PinwardenError("PROBE_FAILED", "the server does not list tasks")
    for task in tasks:
        if type(task) is not dict or type(task.get("taskId")) is not str or is_ambiguous_task(task):
            raise PinwardenError("JSON_CANONICALIZATION_ERROR", "two readers may differ on which tasks it lists")
    return [task["taskId"] for task in tasks]


def without_tasks(frame: bytes, message: Any, gone: Container[int]) -> tuple[bytes, Any]:
    """The answer to ``tasks/list`` without the tasks of these numbers, as bytes and as a value."""
    text = frame.decode()
    result = splice.member(text, 0, "result")
    listed = None if result is None else splice.member(text, result.start, "tasks")
    if listed is None:
        raise PinwardenError("PROBE_FAILED", "the server does not list tasks")
    kept = [task for number, task in enumerate(message["result"]["tasks"]) if number not in gone]
    edits = splice.without_elements(text, listed, gone)
    return splice.edited(text, edits).encode(), {**message, "result": {**message["result"], "tasks": kept}}


def is_task(result: Any) -> bool:
    """Whether the answer to a call says that its result comes later."""
    if type(result) is not dict:
        return False
    return result.get("resultType") == "task" or type(result.get("task")) is dict
