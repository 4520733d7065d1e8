"""Code that is called without a call in the source: by operators, by base classes, by hooks; and rare ways outside."""

from __future__ import annotations

import pytest

from tests.contract.entitlements.servers import analysed, entitlements_of, kinds

SPECIAL = {
    "__eq__(self, other)": "Thing() == x",
    "__hash__(self)": "{Thing(): x}",
    "__str__(self)": "f'{Thing()}'",
    "__format__(self, how)": "format(Thing(), x)",
    "__repr__(self)": "repr([Thing()])",
    "__bool__(self)": "x if Thing() else None",
    "__len__(self)": "not Thing()",
    "__iter__(self)": "list(Thing())",
    "__next__(self)": "next(Thing())",
    "__contains__(self, other)": "x in Thing()",
    "__radd__(self, other)": "sum([Thing()])",
    "__lt__(self, other)": "sorted([Thing(), Thing()])",
    "__neg__(self)": "-Thing()",
    "__index__(self)": "[x][Thing()]",
    "__getattribute__(self, name)": "Thing().anything",
    "__setattr__(self, name, value)": "setattr(Thing(), 'a', x)",
    "__del__(self)": "Thing()",
    "__fspath__(self)": "__import__('os').path.join(Thing(), x)",
    "__await__(self)": "Thing()",
    "__reduce_ex__(self, version)": "__import__('copy').copy(Thing())",
}


@pytest.mark.parametrize(("method", "use"), SPECIAL.items(), ids=SPECIAL)
def test_an_attack_that_hides_a_program_behind_an_operator_is_found(method: str, use: str) -> None:
    text = f"import os\nclass Thing:\n    def {method}:\n        os.system('x')\ndef handler(x):\n    return {use}\n"
    assert kinds(text) == ("subprocess",)
    assert kinds(text.replace("Thing()", "x")) == ()


BASES = {
    "a parser": ("html.parser", "HTMLParser", "handle_data(self, data)", "Thing().feed(x)"),
    "an encoder": ("json", "JSONEncoder", "default(self, value)", "json.dumps(x, cls=Thing)"),
    "a visitor": ("ast", "NodeVisitor", "visit_Name(self, node)", "Thing().visit(x)"),
    "a handler of records": ("logging", "Handler", "emit(self, record)", "logging.getLogger().addHandler(Thing())"),
    "a protocol": ("asyncio", "Protocol", "data_received(self, data)", "x.create_server(Thing)"),
    "an enumeration": ("enum", "Enum", "_missing_(cls, value)", "Thing(x)"),
}


@pytest.mark.parametrize(("module", "base", "method", "use"), BASES.values(), ids=BASES)
def test_an_attack_that_lets_a_base_class_start_the_program_is_found(
    module: str, base: str, method: str, use: str
) -> None:
    assert kinds(f"""
import os, {module}
class Thing({module}.{base}):
    def {method}:
        os.system('x')
def handler(x):
    return {use}
""") == ("subprocess",)


def test_an_attack_that_starts_a_program_when_a_model_is_checked_is_found() -> None:
    text = """
        import os, pydantic
        class Thing(pydantic.BaseModel):
            a: str
            @pydantic.field_validator("a")
            def look(cls, value):
                os.system(value)
            def never_called(self):
                open("x", "w")
        def handler(x):
            Thing(a=x)
    """
    assert kinds(text) == ("subprocess",)


AT_START = {
    "a metaclass": """
        class Meta(type):
            def __call__(cls, *given):
                os.system("x")
        class Thing(metaclass=Meta):
            pass
    """,
    "a parameter of a class": """
        class Thing:
            def __class_getitem__(cls, name):
                os.system(name)
    """,
    "a descriptor": """
        class Field:
            def __set__(self, thing, value):
                os.system(value)
        class Thing:
            field = Field()
    """,
    "an object of which nothing is known": """
        import threading
        kept = threading.local()
        kept.go = os.system
    """,
    "a container from elsewhere": """
        import collections
        kept = collections.deque([os.system])
    """,
}


@pytest.mark.parametrize("text", AT_START.values(), ids=AT_START)
def test_an_attack_that_runs_at_import_is_reported_for_the_servers_startup(text: str) -> None:
    result = analysed(f"        import os{text}\n        def handler(x):\n            return x\n")
    assert (result.startup.kinds, result.handlers["tool"].kinds) == (("subprocess",), ())


def test_a_function_registered_in_place_of_another_is_unknown_reach() -> None:
    result = analysed("""
        import functools, os
        @functools.singledispatch
        def go(x):
            return x
        @go.register
        def _(x: str):
            os.system(x)
        def handler(x):
            go(x)
    """)
    assert [note.reason for note in result.startup.unknown] == ["it is called in the place of another function"]


OUTSIDE = {
    "network": [
        "import socket; socket.socket().connect((x, 1))",
        "from socket import socket; socket().connect((x, 1))",
        "import _socket; _socket.socket().connect((x, 1))",
        "import multiprocessing.connection as c; c.Client((x, 1))",
    ],
    "subprocess": [
        "import _posixsubprocess; _posixsubprocess.fork_exec(x)",
        "import os; os.kill(x, 9)",
        "import venv; venv.create(x)",
        "import pydoc; pydoc.pipepager(x, 'sh')",
        "import os; list(iter(lambda: os.system(x), 0))",
        "import inspect, os; inspect.getattr_static(os, 'system')(x)",
    ],
    "code_evaluation": [
        "import trace; trace.Trace().run(x)",
        "import logging.config; logging.config.dictConfig(x)",
        "import pkgutil; pkgutil.resolve_name(x)",
        "import pydoc; pydoc.locate(x)",
        "import gc; gc.get_objects()",
        "import sys; sys.meta_path.append(x)",
    ],
    "filesystem:write": [
        "import io; io.FileIO(x, 'w')",
        "import xml.etree.ElementTree as e; e.ElementTree().write(x)",
        "import readline; readline.write_history_file(x)",
    ],
    "filesystem:read": ["import xml.etree.ElementTree as e; e.parse(x)", "import pwd; pwd.getpwall()"],
}
ROWS = [(kind, line) for kind, lines in OUTSIDE.items() for line in lines]


@pytest.mark.parametrize(("kind", "line"), ROWS, ids=[line for _, line in ROWS])
def test_an_attack_through_a_rare_external_call_is_found(kind: str, line: str) -> None:
    assert entitlements_of(f"def handler(x):\n    {line}\n").kinds == (kind,)
