"""Tasks: calls whose result comes later (``tasks/result`` in 2025-11-25, ``tasks/get`` in the 2026-07-28 extension).

The server assigns a task id when the tool is called. The client fetches the result later, and the gateway then checks
again that the tool is approved.
"""

from __future__ import annotations

from collections.abc import Container
from threading import Lock
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.session import splice
from pinwarden.gateway.session.messages import is_ambiguous_task

TASK_METHODS = frozenset({"tasks/get", "tasks/result", "tasks/update"})
"""The methods by which a client gets a task's state or result, or sends input to it."""
CANCEL_TASK = "tasks/cancel"
"""A client may always cancel its own tasks, even if the tool is no longer approved."""
LIST_TASKS = "tasks/list"
_MAX_TASKS = 10_000  # tasks to remember for each client; beyond that, the gateway forgets the oldest
_MAX_ID_LENGTH = 1024  # characters of a task id


class TaskRegistry:
    """Maps tasks to the tools that started them. Tasks outlive sessions, so all sessions of a server share one object.

    A remote server sees all clients of the gateway as one client and cannot separate their tasks. Therefore a task
    belongs to the client that called the tool, and other clients cannot use it.
    """

    def __init__(self) -> None:
        self._tools: dict[str, dict[str, frozenset[str]]] = {}
        """The tools that may have started a task, by client and task id."""
        self._lock = Lock()

    def remember(self, result: Any, tool: str, client: str = "") -> None:
        """Remember the tool of a task, if the result of a call announces a task in the form of any revision."""
        for task in (result, result.get("task") if type(result) is dict else None):
            task_id = task.get("taskId") if type(task) is dict else None
            if type(task_id) is str and len(task_id) <= _MAX_ID_LENGTH:
                with self._lock:
                    own_tasks = self._tools.setdefault(client, {})
                    tools = own_tasks.pop(task_id, frozenset())
                    own_tasks[task_id] = tools | {tool}  # if a server reuses an id, all its tools must be approved
                    if len(own_tasks) > _MAX_TASKS:
                        del own_tasks[next(iter(own_tasks))]

    def find_tools(self, task: str, client: str = "") -> frozenset[str]:
        """Return the tools that may have started a client's task; empty for an unknown task."""
        return self._tools.get(client, {}).get(task, frozenset())

    def belongs_to_other_client(self, task: str, client: str) -> bool:
        """Whether the task belongs to other clients and not to this one."""
        with self._lock:
            owners = [owner for owner, own_tasks in self._tools.items() if task in own_tasks]
        return bool(owners) and client not in owners


def read_task_ids(result: Any) -> list[str]:
    """Return the task ids in a ``tasks/list`` result, in its order."""
    tasks = result.get("tasks") if type(result) is dict else None
    if type(tasks) is not list:
        raise PinwardenError("PROBE_FAILED", "the server's response contains no list of tasks")
    for task in tasks:
        if type(task) is not dict or type(task.get("taskId")) is not str or is_ambiguous_task(task):
            raise PinwardenError(
                "JSON_CANONICALIZATION_ERROR", "two JSON parsers could read the list of tasks differently"
            )
    return [task["taskId"] for task in tasks]


def remove_tasks(data: bytes, message: Any, removed: Container[int]) -> tuple[bytes, Any]:
    """Return a ``tasks/list`` response without the tasks at these indexes, as bytes and as a value."""
    text = data.decode()
    result = splice.find_member(text, 0, "result")
    listed = None if result is None else splice.find_member(text, result.start, "tasks")
    if listed is None:
        raise PinwardenError("PROBE_FAILED", "the server's response contains no list of tasks")
    kept = [task for index, task in enumerate(message["result"]["tasks"]) if index not in removed]
    edits = splice.build_element_removals(text, listed, removed)
    return splice.apply_edits(text, edits).encode(), {**message, "result": {**message["result"], "tasks": kept}}
