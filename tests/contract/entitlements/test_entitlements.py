"""What handlers can do, by the objects they use, and where that is said to come from."""

from __future__ import annotations

import pytest

from pinwarden.contract.entitlements.analysis import analyse, find_contradictions, find_handlers, find_new_entitlements
from pinwarden.contract.entitlements.values import Handler, Step
from tests.contract.entitlements.servers import entitlements_of, kinds, sources, tools

R, W = "filesystem:read", "filesystem:write"

OBJECTS = {
    "open to read": ("open(x)", (R,)),
    "open to write": ("open(x, 'w')", (W,)),
    "open to append, by keyword": ("open(x, mode='ab')", (W,)),
    "open to read and write": ("open(x, 'r+')", (R, W)),
    "open with an unknown mode": ("open(x, y)", (R, W)),
    "a path that is written": ("Path(x).write_text('a')", (W,)),
    "a path below a path": ("(Path(x) / 'a').parent.joinpath('b').read_text()", (R,)),
    "a path that is opened": ("Path(x).expanduser().open('w')", (W,)),
    "a path that only has a name": ("Path(x).with_suffix('.a').name", ()),
    "the environment": ("os.environ['A']", ("environment",)),
    "the environment by a function": ("os.getenv('A')", ("environment",)),
    "a hash": ("hashlib.sha256(x).hexdigest()", ("crypto",)),
    "native code": ("ctypes.CDLL(x)", ("native",)),
    "pickled code": ("pickle.loads(x)", ("code_evaluation",)),
    "a client": ("httpx.Client().get(x)", ("network",)),
    "a client that is only made": ("httpx.Client()", ()),
    "a git command that reads": ("git.Repo(x).git.status()", (R, "subprocess")),
    "a git command that writes": ("git.Repo(x).git.commit('-m', y)", (R, W, "subprocess")),
    "a branch name": ("git.Repo(x).active_branch.name", (R,)),
    "a clone": ("git.Repo.clone_from(x, y)", (R, W, "network", "subprocess")),
    "a statement that reads": ("sqlite3.connect(x).execute('SELECT 1')", (R,)),
    "a statement that writes": ("sqlite3.connect(x).cursor().execute('DELETE FROM a')", (R, W)),
    "a statement of the caller": ("sqlite3.connect(x).execute(y)", (R, W)),
    "a statement with a gap": ("sqlite3.connect(x).execute(f'select {y} from a')", (R,)),
    "a bucket": ("boto3.client('s3').put_object(Key=x)", ("network",)),
    "a shell": ("subprocess.Popen(x, shell=True)", ("subprocess",)),
    "an unknown object with a telling method": ("y.write_text('a')", (W,)),
    "a table written to a file": ("pandas.DataFrame(x).to_csv(y)", (W,)),
}
IMPORTS = (
    "import os, git, httpx, boto3, ctypes, hashlib, pandas, pickle, sqlite3, subprocess\nfrom pathlib import Path\n"
)


@pytest.mark.parametrize(("code", "expected"), OBJECTS.values(), ids=OBJECTS)
def test_an_object_is_followed_to_what_its_method_does(code: str, expected: tuple[str, ...]) -> None:
    assert kinds(f"{IMPORTS}def handler(x, y):\n    return {code}\n") == expected


def test_a_client_is_known_through_attributes_annotations_and_context_managers() -> None:
    assert kinds("""
        import httpx
        from contextlib import asynccontextmanager
        class Api:
            client: httpx.AsyncClient
            def __init__(self, client: httpx.AsyncClient) -> None:
                self._client = client
            @asynccontextmanager
            async def session(self):
                async with self._client as opened:
                    yield opened
        async def handler(api: Api):
            async with api.session() as session:
                return await session.get("/")
    """) == ("network",)


def test_the_mode_of_a_file_is_known_through_a_parameter() -> None:
    text = """
        def load(path, mode):
            with open(path, mode) as file:
                return file
        def handler(x):
            return load(x, "r")
        def writer(x):
            return load(x, "w")
    """
    assert (kinds(text), kinds(text, "writer")) == ((R,), (W,))


def test_a_finding_has_its_location_and_call_path() -> None:
    result = entitlements_of(
        """
        from helpers import save

        def handler(x):
            return save(x)
        """,
        helpers="""
        class Disk:
            def put(self, x):
                open("a", "w").write(x)

        def save(x):
            Disk().put(x)
        """,
    )
    (finding,) = result.findings
    assert (finding.kind, finding.path, finding.line, finding.what) == (W, "helpers.py", 4, "builtins.open")
    assert finding.evidence == 'open("a", "w").write(x)'
    assert finding.call_path == (
        Step(function="handler", path="server.py", line=5),
        Step(function="save", path="helpers.py", line=7),
        Step(function="Disk.put", path="helpers.py", line=4),
    )


def test_relative_imports_and_packages_are_followed() -> None:
    given = sources(
        app__init="from .server import handler",
        app__server="from . import disk\nfrom .deep import go as run\ndef handler(x):\n    disk.save(x)\n    run(x)\n",
        app__disk="def save(x):\n    open(x, 'w')\n",
        app__deep__init="from ..net import *\n",
        app__net="import socket\ndef go(x):\n    socket.create_connection(x)\n",
    )
    result = analyse(given, [Handler(name="tool", module="app.server", function="handler")])
    assert result.handlers["tool"].kinds == (W, "network")


def test_packages_are_followed_one_level_deep_and_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    server = sources(server="import near\ndef handler(x):\n    near.go(x)\n")
    packages = sources(
        near__init="import far\nfrom near.own import save\ndef go(x):\n    save(x)\n    far.send(x)\n",
        near__own="def save(x):\n    open(x, 'w')\n",
        far="import socket\ndef send(x):\n    socket.create_connection(x)\n",
    )
    handler = [Handler(name="tool", module="server", function="handler")]
    found = analyse(server, handler, packages).handlers["tool"]
    assert found.kinds == (W,)
    assert any("far" in unknown.what for unknown in found.unknown)
    both = {**server, **sources(server="import near, far\ndef handler(x):\n    near.go(x)\n    far.send(x)\n")}
    assert analyse(both, handler, packages).handlers["tool"].kinds == (W, "network")
    monkeypatch.setattr("pinwarden.contract.entitlements.interpreter.interpreter.MAX_PACKAGE_MODULES", 1)
    limited = analyse(server, handler, packages).handlers["tool"]
    assert limited.kinds == ()
    assert limited.unknown


def test_modules_that_import_each_other_are_followed() -> None:
    assert kinds(
        "import other\ndef helper(x):\n    open(x)\ndef handler(x):\n    other.go(x)\n",
        other="from server import helper\ndef go(x):\n    helper(x)\n",
    ) == (R,)


def test_a_package_is_analysed_on_request_and_its_findings_are_marked() -> None:
    own = sources(server="import thing\ndef handler(x):\n    thing.go(x)\n")
    inside = sources(thing__init="from .impl import go\n", thing__impl="import os\ndef go(x):\n    os.system(x)\n")
    handler = Handler(name="tool", module="server", function="handler")
    without = analyse(own, [handler]).handlers["tool"]
    looked = analyse(own, [handler], inside).handlers["tool"]
    assert (without.kinds, [note.what for note in without.unknown]) == ((), ["thing.go"])
    assert (looked.kinds, looked.unknown) == (("subprocess",), ())
    assert [(each.third_party, each.path) for each in looked.findings] == [(True, "thing/impl.py")]


def test_the_answer_does_not_depend_on_the_order_of_modules() -> None:
    given = sources(
        server="import a, b\nX = {'a': a.go, 'b': b.go}\ndef handler(n, x):\n    X[n](x)\n",
        a="import os\ndef go(x):\n    os.system(x)\n",
        b="import os\ndef go(x):\n    os.remove(x)\n",
    )
    handler = Handler(name="tool", module="server", function="handler")
    turned = dict(reversed(given.items()))
    assert analyse(given, [handler]) == analyse(turned, [handler])


def test_a_handler_that_is_not_there_is_unknown_and_not_harmless() -> None:
    result = entitlements_of("def other(x):\n    return x\n")
    assert (result.kinds, [note.reason for note in result.unknown]) == ((), ["the handler was not found in the source"])


def test_handlers_of_the_same_name_are_combined() -> None:
    """Attack: a harmless function registered under the name of a harmful one."""
    text = """
        from fastmcp import FastMCP
        import os
        mcp = FastMCP("x")
        @mcp.tool(name="same")
        def first(x): os.remove(x)
        @mcp.tool(name="same")
        def second(x): return x
    """
    assert tools(text) == {"same": (W,)}
    assert analyse(sources(server=text)).handlers["same"].kinds == (W,)


# Where tools are registered


def test_tools_of_the_high_level_servers_are_found() -> None:
    for line in ("from mcp.server.fastmcp import FastMCP as S", "from mcp.server import MCPServer as S"):
        assert tools(f"""
            {line}
            import os
            mcp = S("x")
            @mcp.tool()
            def plain(x): return x
            @mcp.tool(name="named")
            def other(x): os.remove(x)
        """) == {"plain": (), "named": (W,)}


def test_tools_of_fastmcp_are_found_with_and_without_a_call() -> None:
    assert tools("""
        from fastmcp import FastMCP
        from fastmcp.tools import Tool
        import os
        mcp = FastMCP("x")
        @mcp.tool
        def bare(x): os.getenv(x)
        @mcp.tool("given")
        def renamed(x): return x
        def later(x): os.remove(x)
        mcp.tool(later)
        def made(x): os.listdir(x)
        mcp.add_tool(Tool.from_function(made, name="from_function"))
    """) == {"bare": ("environment",), "given": (), "later": (W,), "from_function": (R,)}


def test_tools_registered_inside_functions_and_by_methods_are_found() -> None:
    assert tools("""
        from mcp.server.fastmcp import FastMCP
        import os
        class App:
            def __init__(self):
                self.mcp = FastMCP("x")
                self.mcp.add_tool(self.remove, name="remove")
                self._more()
            def remove(self, x): os.remove(x)
            def _more(self):
                @self.mcp.tool()
                def listing(x): os.listdir(x)
        def register(server):
            @server.tool()
            def unknown_server(x): os.getenv(x)
    """) == {"remove": (W,), "listing": (R,), "unknown_server": ("environment",)}


DISPATCH = """
    import os
    from enum import Enum
    from mcp.server import Server
    from mcp.types import Tool
    class Names(str, Enum):
        LIST = "list"
        REMOVE = "remove"
    server = Server("x")
    @server.list_tools()
    async def list_tools():
        return [Tool(name=Names.LIST), Tool(name="remove"), Tool(name="env", inputSchema={})]
    @server.call_tool()
    async def call_tool(name, arguments):
BODY
"""
BODIES = {
    "if": """
        if name == Names.LIST:
            return os.listdir(".")
        elif name == "remove":
            return os.remove("a")
        if name != "env":
            raise ValueError
        return os.getenv("a")
    """,
    "match": """
        match name:
            case Names.LIST:
                return os.listdir(".")
            case "remove" | "delete":
                return os.remove("a")
            case _:
                return os.getenv("a")
    """,
    "dict": """
        table = {"list": os.listdir, "remove": lambda x: os.remove(x), "env": os.getenv}
        return table[name](arguments)
    """,
    "in": """
        if name in ("list", "ls"):
            return os.listdir(".")
        if name.startswith("rem"):
            return os.remove("a")
        if not name == "env":
            raise ValueError
        return os.getenv("a")
    """,
    "passed on": """
        return dispatch(name)
    def dispatch(tool):
        if tool == "list":
            return os.listdir(".")
        return really(tool)
    def really(tool):
        return os.remove("a") if tool == "remove" else os.getenv("a")
    """,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_dispatching_handler_is_analysed_per_tool(body: str) -> None:
    assert tools(DISPATCH.replace("BODY", body.strip("\n"))) == {
        "list": (R,),
        "remove": (W,),
        "env": ("environment",),
    }


def test_a_dispatching_handler_of_the_new_low_level_server_is_analysed_per_tool() -> None:
    assert tools("""
        import os
        from mcp.server.lowlevel import Server
        from mcp import types
        async def list_tools(ctx, params):
            return types.ListToolsResult(tools=[types.Tool(name="list"), types.Tool(name="remove")])
        async def call_tool(ctx, params):
            if params.name == "list":
                return os.listdir(".")
            return os.remove("a")
        server = Server("x", on_list_tools=list_tools, on_call_tool=call_tool)
    """) == {"list": (R,), "remove": (W,)}


def test_a_constant_of_the_program_does_not_hide_a_branch() -> None:
    """Attack: a switch that looks off in the source is turned on from elsewhere."""
    assert kinds("""
        import os
        MODE = "safe"
        def handler(x):
            if MODE == "danger":
                os.system(x)
    """) == ("subprocess",)


# Contradictions


def test_a_tool_that_declares_read_only_and_writes_is_a_contradiction() -> None:
    result = entitlements_of("import os\ndef handler(x):\n    os.remove(x)\n    os.listdir(x)\n    os.system(x)\n")
    contradicted = find_contradictions("tool", {"readOnlyHint": True}, result)
    assert [(each.code, each.tool, each.kind) for each in contradicted] == [
        ("read_only_contradicted", "tool", W),
        ("read_only_contradicted", "tool", "subprocess"),
    ]
    assert [each.line for each in contradicted[0].findings] == [3]
    assert find_contradictions("tool", {"readOnlyHint": False}, result) == ()
    assert find_contradictions("tool", {}, result) == ()


def test_an_entitlement_that_is_not_in_the_lock_is_reported() -> None:
    result = entitlements_of("import os, socket\ndef handler(x):\n    os.remove(x)\n    socket.create_connection(x)\n")
    assert [(each.code, each.kind) for each in find_new_entitlements("tool", (W, "crypto"), result)] == [
        ("entitlement_gained", "network")
    ]
    assert find_new_entitlements("tool", result.kinds, result) == ()


def test_handlers_carry_the_place_where_they_are_defined() -> None:
    given = sources(
        server="from fastmcp import FastMCP\nm = FastMCP('x')\ndef make():\n    @m.tool\n    def a(): ...\n"
    )
    assert find_handlers(given) == (Handler(name="a", module="server", function="make.<locals>.a", line=5),)
