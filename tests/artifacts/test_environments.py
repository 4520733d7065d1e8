"""Built environments: made from verified archives only, audited file by file, shared, and never half-built."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pinwarden.artifacts.environments import node, python
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import MANIFEST, TREE
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage, to_bytes
from tests.support.needs import needs

HERE = node.NodePlatform.current()
NODE = needs("node", install="apt-get install nodejs")


def put(store: Store, data: bytes) -> Digest:
    digest = Digest.of_bytes(data)
    with store.open_incoming() as stream:
        stream.write(data)
        store.add_file(stream, digest)
    return digest


def npm_archive(name: str, version: str, files: dict[str, str], **about: object) -> bytes:
    buffer = io.BytesIO()
    everything = {"package.json": json.dumps({"name": name, "version": version, **about}), **files}
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in everything.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def npm_package(store: Store, name: str, archive: bytes, path: str, **about: object) -> ClosurePackage:
    digest = put(store, archive)
    place = store.find(digest)
    assert place is not None
    file = ClosureFile(
        name=f"{digest.hex[:8]}.tgz", url="https://x.example/", digest=digest, tree=node.compute_package_digest(place)
    )
    return ClosurePackage(name=name, version="1.0.0", path=path, files=(file,), **about)  # type: ignore[arg-type]


def npm_closure(store: Store) -> Closure:
    tool = npm_archive(
        "@acme/notes",
        "1.0.0",
        {"cli.js": "console.log(require('dep') + ' ' + process.argv.slice(2).join(','))"},
        bin={"notes": "cli.js"},
        scripts={"postinstall": "node -e \"require('fs').writeFileSync('/tmp/pwned', '')\""},
    )
    dep = npm_archive("dep", "1.0.0", {"index.js": "module.exports = 'approved'"}, main="index.js")
    other = npm_archive("other-os", "1.0.0", {"index.js": ""})
    return Closure(
        ecosystem="npm",
        name="@acme/notes",
        version="1.0.0",
        resolver="npm 0",
        registry="https://x.example/",
        packages=(
            npm_package(store, "@acme/notes", tool, "node_modules/@acme/notes", has_install_scripts=True),
            npm_package(store, "dep", dep, "node_modules/dep"),
            npm_package(store, "other-os", other, "node_modules/other-os", os=("sunos",), is_optional=True),
        ),
    )


def built_node(store: Store, closure: Closure) -> Path:
    packages = node.choose_packages(closure, HERE)
    key = node.compute_environment_key(Digest.of_bytes(to_bytes(closure)), HERE)
    return store.build_environment(
        key,
        lambda folder: node.build(folder, key, packages, store),
        is_intact=lambda folder: node.audit(folder, packages, store) is None,
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@NODE
def test_a_package_runs_from_its_verified_archives_and_its_install_scripts_do_not(store: Store) -> None:
    closure = npm_closure(store)
    folder = built_node(store, closure)
    assert node.audit(folder, node.choose_packages(closure, HERE), store) is None
    assert not (folder / TREE / "node_modules" / "other-os").exists()
    assert not Path("/tmp/pwned").exists()
    command = node.build_start_command(folder, closure.root, None, Path("/usr/bin/env"))
    done = subprocess.run(["node", command[1], "a", "b"], check=True, capture_output=True, text=True)
    assert done.stdout == "approved a,b\n"


def tree_of(folder: Path) -> Path:
    return folder / TREE / "node_modules"


def overwrite(path: Path, text: str) -> None:
    path.parent.chmod(0o755)
    path.chmod(0o644)
    path.write_text(text)


def swap_with_manifest(folder: Path) -> None:
    """A thorough attacker: the manifest is made to fit the changed file."""
    place = tree_of(folder) / "dep" / "index.js"
    before = hashlib.sha256(place.read_bytes()).hexdigest()
    overwrite(place, "module.exports = 'evil'")
    after = hashlib.sha256(place.read_bytes()).hexdigest()
    manifest = folder / MANIFEST
    manifest.write_text(manifest.read_text().replace(before, after))


def call_it_made_here(folder: Path, path: str) -> None:
    """Another thorough attacker: the manifest says that the changed file was made here, where nothing is anchored."""
    overwrite(folder / TREE / path, "module.exports = 'evil'")
    digest = hashlib.sha256((folder / TREE / path).read_bytes()).hexdigest()
    text = (folder / MANIFEST).read_text()
    mark = "" if "# build-output\n" in text else "# build-output\n"
    (folder / MANIFEST).write_text(f"{text}{mark}{digest} - {path}\n")


def same_size_and_time(folder: Path) -> None:
    place = tree_of(folder) / "dep" / "index.js"
    about = place.stat()
    overwrite(place, "module.exports = 'evil    '")
    os.utime(place, ns=(about.st_atime_ns, about.st_mtime_ns))


def shadow(folder: Path) -> None:
    place = tree_of(folder) / "@acme/notes/node_modules/dep"
    place.mkdir(parents=True)
    (place / "index.js").write_text("module.exports = 'evil'")


def pipe_in_place(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def relink(place: Path, target: str) -> None:
    place.unlink()
    place.symlink_to(target)


ATTACKS: dict[str, Callable[[Path], object]] = {
    "a changed file": lambda folder: overwrite(tree_of(folder) / "dep" / "index.js", "module.exports = 'evil'"),
    "a changed file of the same size and time": same_size_and_time,
    "an extra file": lambda folder: (tree_of(folder) / "dep" / "extra.js").write_text("evil"),
    "an extra package that shadows a dependency": shadow,
    "a missing file": lambda folder: (tree_of(folder) / "dep" / "index.js").unlink(),
    "a file replaced by a link": lambda folder: relink(tree_of(folder) / "dep" / "index.js", "/etc/hostname"),
    "a file made executable": lambda folder: (tree_of(folder) / "dep" / "index.js").chmod(0o755),
    "a manifest that fits the changed file": swap_with_manifest,
    "a changed file that was made here": lambda folder: call_it_made_here(folder, "node_modules/dep/index.js"),
    "a pipe in the place of a file": lambda folder: pipe_in_place(tree_of(folder) / "dep" / "index.js"),
    "a manifest without a package": lambda folder: (folder / MANIFEST).write_text(
        (folder / MANIFEST).read_text().partition("# node_modules/dep")[0]
    ),
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "an empty manifest": lambda folder: (folder / MANIFEST).write_bytes(b""),
    "a manifest that is not text": lambda folder: (folder / MANIFEST).write_bytes(b"# node_modules/dep\n\xff\xfe\n"),
}


@NODE
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_tampered_environment_is_detected_and_rebuilt(store: Store, attack: str) -> None:
    closure = npm_closure(store)
    folder = built_node(store, closure)
    ATTACKS[attack](folder)
    assert node.audit(folder, node.choose_packages(closure, HERE), store) is not None
    again = built_node(store, closure)
    assert again == folder
    assert node.audit(again, node.choose_packages(closure, HERE), store) is None
    assert (tree_of(again) / "dep" / "index.js").read_text() == "module.exports = 'approved'"
    assert not (tree_of(again) / "dep" / "extra.js").exists()


def test_an_archive_in_the_store_that_was_tampered_with_is_not_used(store: Store) -> None:
    closure = npm_closure(store)
    place = store.find(closure.packages[1].files[0].digest)
    assert place is not None
    overwrite(place, "evil")
    with pytest.raises(PinwardenError) as caught:
        built_node(store, closure)
    assert caught.value.code == "ARTIFACT_MISSING"
    assert not any((store.root / "environments").glob("[!.]*"))


def test_an_archive_that_unpacks_to_something_else_than_was_locked_is_refused(store: Store) -> None:
    closure = npm_closure(store)
    lie = replace(closure.packages[1].files[0], tree=Digest.of_bytes(b"something else"))
    packages = (closure.packages[0], replace(closure.packages[1], files=(lie,)), closure.packages[2])
    with pytest.raises(PinwardenError) as caught:
        built_node(store, replace(closure, packages=packages))
    assert caught.value.code == "ARTIFACT_MISMATCH"


def test_a_package_that_is_needed_and_not_for_this_platform_is_an_error(store: Store) -> None:
    closure = npm_closure(store)
    needed = replace(closure.packages[2], is_optional=False)
    with pytest.raises(PinwardenError) as caught:
        node.choose_packages(replace(closure, packages=(*closure.packages[:2], needed)), HERE)
    assert caught.value.code == "NO_USABLE_FILE"


def test_a_program_outside_its_package_is_refused(store: Store) -> None:
    archive = npm_archive("evil", "1.0.0", {"x.js": ""}, bin="../../../../../../bin/sh")
    package = npm_package(store, "evil", archive, "node_modules/evil")
    closure = Closure(
        ecosystem="npm", name="evil", version="1.0.0", resolver="", registry="https://x.example/", packages=(package,)
    )
    with pytest.raises(PinwardenError) as caught:
        node.build_start_command(built_node(store, closure), closure.root, None, Path("node"))
    assert caught.value.code == "PROGRAM_UNKNOWN"


def test_a_package_whose_own_description_cannot_be_read_has_no_program(store: Store) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("package/package.json")
        member.size = 8
        archive.addfile(member, io.BytesIO(b'{"bin": '))
    package = npm_package(store, "evil", buffer.getvalue(), "node_modules/evil")
    closure = Closure(
        ecosystem="npm", name="evil", version="1.0.0", resolver="", registry="https://x.example/", packages=(package,)
    )
    with pytest.raises(PinwardenError) as caught:
        node.build_start_command(built_node(store, closure), closure.root, None, Path("node"))
    assert caught.value.code == "PROGRAM_UNKNOWN"


def test_a_program_whose_path_holds_a_nul_is_refused(store: Store) -> None:
    archive = npm_archive("evil", "1.0.0", {"x.js": ""}, bin="x.js\0")
    package = npm_package(store, "evil", archive, "node_modules/evil")
    closure = Closure(
        ecosystem="npm", name="evil", version="1.0.0", resolver="", registry="https://x.example/", packages=(package,)
    )
    with pytest.raises(PinwardenError) as caught:
        node.build_start_command(built_node(store, closure), closure.root, None, Path("node"))
    assert caught.value.code == "PROGRAM_UNKNOWN"


# Python


def wheel(name: str, files: dict[str, str], scripts: str = "") -> bytes:
    buffer = io.BytesIO()
    everything = {
        **files,
        f"{name}-1.0.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n",
        f"{name}-1.0.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{name}-1.0.0.dist-info/entry_points.txt": scripts} if scripts else {}),
    }
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in everything.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return buffer.getvalue()


def wheel_package(store: Store, name: str, archive: bytes) -> ClosurePackage:
    digest = put(store, archive)
    place = store.find(digest)
    assert place is not None
    file = ClosureFile(
        name=f"{name}-1.0.0-py3-none-any.whl",
        url="https://x.example/",
        digest=digest,
        tree=python.compute_wheel_digest(place),
    )
    return ClosurePackage(name=name, version="1.0.0", files=(file,))


def python_closure(store: Store) -> Closure:
    tool = wheel(
        "notes",
        {
            "notes/__init__.py": "def main():\n    import dep, sys\n    print(dep.WORD, sys.argv[1:], __cached__)\n",
            "notes-1.0.0.data/purelib/extra_of_notes.py": "",
        },
        scripts="[console_scripts]\nnotes = notes:main\n",
    )
    return Closure(
        ecosystem="pypi",
        name="notes",
        version="1.0.0",
        resolver="uv 0",
        registry="https://x.example/simple/",
        packages=(
            wheel_package(store, "notes", tool),
            wheel_package(store, "dep", wheel("dep", {"dep.py": "WORD = 'approved'\n"})),
        ),
    )


def test_a_program_is_found_by_the_name_of_a_package_with_a_dot(store: Store) -> None:
    name = "acme.notes-server"
    tool = wheel(
        "acme_notes_server",
        {"notes/__init__.py": "def main():\n    print('started')\n"},
        scripts=f"[console_scripts]\n{name} = notes:main\nother = notes:other\n",
    )
    closure = replace(python_closure(store), name="acme-notes-server")
    package = replace(wheel_package(store, "acme_notes_server", tool), name="acme-notes-server")
    closure = replace(closure, packages=(package,))
    assert run_python(built_python(store, closure), closure) == "started\n"


INTERPRETER = python.Interpreter.current()


def built_python(store: Store, closure: Closure) -> Path:
    key = python.compute_environment_key(Digest.of_bytes(to_bytes(closure)), INTERPRETER)
    final = store.get_environment_folder(key)
    return store.build_environment(
        key,
        lambda folder: python.build(folder, final, python.choose_packages(closure), INTERPRETER, store),
        is_intact=lambda folder: python.audit(folder, closure, INTERPRETER, store) is None,
    )


def run_python(folder: Path, closure: Closure, **environment: str) -> str:
    command = [*python.build_start_command(folder, closure.root, None), "a"]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def test_a_python_package_runs_from_its_wheels_with_the_bytecode_that_was_made_and_audited(store: Store) -> None:
    closure = python_closure(store)
    folder = built_python(store, closure)
    assert python.audit(folder, closure, INTERPRETER, store) is None
    word, _, rest = run_python(folder, closure).partition(" ")
    assert word == "approved"
    cached = Path(rest.rpartition(" ")[2].strip()).resolve()
    assert cached.is_file()
    assert cached.is_relative_to(folder / TREE)
    assert (folder / TREE / "site" / "extra_of_notes.py").is_file()
    assert python.audit(folder, closure, INTERPRETER, store) is None  # running it left nothing behind


def test_a_server_does_not_see_packages_of_its_interpreter_nor_of_the_environment(store: Store, tmp_path: Path) -> None:
    (tmp_path / "dep.py").write_text("WORD = 'evil'\n")
    closure = python_closure(store)
    folder = built_python(store, closure)
    assert run_python(folder, closure, PYTHONPATH=str(tmp_path), PYTHONSTARTUP=str(tmp_path / "dep.py")).startswith(
        "approved"
    )
    command = [*python.build_start_command(folder, closure.root, None)[:-1], "import pinwarden"]
    assert subprocess.run(command, check=False, capture_output=True).returncode != 0


def site_of(folder: Path) -> Path:
    return folder / TREE / "site"


def poison_bytecode(folder: Path) -> None:
    """Bytecode that says it belongs to the approved source, and does something else."""
    (place,) = (site_of(folder) / "__pycache__").glob("dep.*.pyc")
    evil = site_of(folder).parent / "evil.py"
    evil.write_text("WORD = 'evil'\n")
    made = folder / "evil.pyc"
    mode = "py_compile.PycInvalidationMode.UNCHECKED_HASH"
    code = f"import py_compile; py_compile.compile({str(evil)!r}, {str(made)!r}, invalidation_mode={mode})"
    subprocess.run([sys.executable, "-c", code], check=True)
    evil.unlink()
    place.unlink()
    made.rename(place)


PYTHON_ATTACKS: dict[str, Callable[[Path], object]] = {
    "a changed module": lambda folder: overwrite(site_of(folder) / "dep.py", "WORD = 'evil'\n"),
    "a changed module that was made here": lambda folder: call_it_made_here(folder, "site/dep.py"),
    "poisoned bytecode": poison_bytecode,
    "a module before the approved one": lambda folder: (site_of(folder) / "sitecustomize.py").write_text("evil"),
    "a path file": lambda folder: (site_of(folder) / "evil.pth").write_text("import os"),
    "another interpreter": lambda folder: relink(folder / "python/bin/python", "/bin/sh"),
    "other settings of the interpreter": lambda folder: overwrite(
        folder / "python/pyvenv.cfg", "include-system-site-packages = true\n"
    ),
    "something beside the interpreter": lambda folder: (folder / "python/bin/python._pth").write_text("evil"),
}


@pytest.mark.parametrize("attack", PYTHON_ATTACKS)
def test_a_tampered_python_environment_is_detected_and_rebuilt(store: Store, attack: str) -> None:
    closure = python_closure(store)
    folder = built_python(store, closure)
    PYTHON_ATTACKS[attack](folder)
    assert python.audit(folder, closure, INTERPRETER, store) is not None
    built_python(store, closure)
    assert python.audit(folder, closure, INTERPRETER, store) is None
    assert run_python(folder, closure).startswith("approved")


def plant(folder: Path, path: str, data: bytes = b"evil", *, executable: bool = False) -> None:
    """Put a file into the tree, and a line about it into the section of files that were made here."""
    place = folder / TREE / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.write_bytes(data)
    place.chmod(0o755 if executable else 0o644)
    row = f"{hashlib.sha256(data).hexdigest()} {'x' if executable else '-'} {path}"
    head, mark, body = (folder / MANIFEST).read_text().partition("# build-output\n")
    rows = [each for each in body.splitlines() if not each.endswith(f" {path}")]
    lines = "".join(f"{each}\n" for each in sorted([*rows, row], key=lambda each: each.split(" ", 2)[2]))
    (folder / MANIFEST).write_text(f"{head}{mark}{lines}")


def plant_link(folder: Path) -> None:
    plant(folder, "site/__pycache__/dep.link", b"")
    place = folder / TREE / "site/__pycache__/dep.link"
    place.unlink()
    place.symlink_to("/etc/passwd")


TAG = sys.implementation.cache_tag
PLANTED: dict[str, Callable[[Path], object]] = {
    "a path file": lambda folder: plant(folder, "site/evil.pth", b"import os"),
    "sitecustomize": lambda folder: plant(folder, "site/sitecustomize.py"),
    "usercustomize": lambda folder: plant(folder, "site/usercustomize.py"),
    "an extension module": lambda folder: plant(folder, "site/dep.abi3.so"),
    "an extension module that is executable": lambda folder: plant(folder, "site/evil.so", executable=True),
    "a module": lambda folder: plant(folder, "site/notes/evil.py"),
    "a module in place of a locked one": lambda folder: plant(folder, "site/dep.py"),
    "bytecode without a source": lambda folder: plant(folder, f"site/__pycache__/evil.{TAG}.pyc"),
    "bytecode in place of a source": lambda folder: plant(folder, "site/sitecustomize.pyc"),
    "bytecode of another folder": lambda folder: plant(folder, f"site/notes/__pycache__/dep.{TAG}.pyc"),
    "bytecode of another interpreter": lambda folder: plant(folder, "site/__pycache__/dep.cpython-27.pyc"),
    "bytecode that is executable": lambda folder: plant(folder, f"site/__pycache__/dep.{TAG}.pyc", executable=True),
    "a source among bytecode": lambda folder: plant(folder, "site/__pycache__/dep.py"),
    "a link": plant_link,
    "other programs": lambda folder: plant(folder, "site/notes-1.0.0.dist-info/entry_points.txt"),
    "programs of a package that sorts first": lambda folder: plant(
        folder, "site/Notes-0.dist-info/entry_points.txt", b"[console_scripts]\nnotes = dep:evil\n"
    ),
    "a program": lambda folder: plant(folder, "bin/notes", executable=True),
}


@pytest.mark.parametrize("recorded", [False, True], ids=["record as it was", "record replaced"])
@pytest.mark.parametrize("attack", PLANTED)
def test_attack_a_file_that_the_manifest_calls_made_here_does_not_run_unless_it_is_bytecode_of_a_locked_source(
    store: Store, attack: str, *, recorded: bool
) -> None:
    closure = python_closure(store)
    folder = built_python(store, closure)
    PLANTED[attack](folder)
    if recorded:  # an attacker who replaces the store's record as well
        section = (folder / MANIFEST).read_bytes().partition(b"# build-output\n")[2]
        store.record_build_output_digest(folder.name, Digest.of_bytes(section))
    assert python.audit(folder, closure, INTERPRETER, store) is not None
    built_python(store, closure)
    assert python.audit(folder, closure, INTERPRETER, store) is None
    assert run_python(folder, closure).startswith("approved")


def test_attack_planted_bytecode_in_the_manifest_does_not_match_the_stores_record(store: Store) -> None:
    closure = python_closure(store)
    folder = built_python(store, closure)
    poison_bytecode(folder)
    path = f"site/__pycache__/dep.{TAG}.pyc"
    plant(folder, path, (folder / TREE / path).read_bytes())
    assert "build-output" in str(python.audit(folder, closure, INTERPRETER, store))
    built_python(store, closure)
    assert run_python(folder, closure).startswith("approved")


@pytest.mark.parametrize("record", [None, b"", b"sha256:zz\n", b"sha256:" + b"0" * 64 + b"\n"])
def test_an_environment_without_a_valid_record_of_what_was_made_is_built_again(
    store: Store, record: bytes | None
) -> None:
    closure = python_closure(store)
    folder = built_python(store, closure)
    place = store.root / "build-output" / folder.name
    if record is None:
        place.unlink()
    else:
        place.write_bytes(record)
    assert python.audit(folder, closure, INTERPRETER, store) is not None
    built_python(store, closure)
    assert python.audit(folder, closure, INTERPRETER, store) is None


def test_a_package_without_a_wheel_for_this_platform_is_never_built_from_source(store: Store) -> None:
    closure = python_closure(store)
    other = replace(closure.packages[1].files[0], name="dep-1.0.0-cp27-cp27m-win32.whl")
    with pytest.raises(PinwardenError) as caught:
        python.choose_packages(
            replace(closure, packages=(closure.packages[0], replace(closure.packages[1], files=(other,))))
        )
    assert caught.value.code == "NO_USABLE_FILE"


# Several at once, and killed


def _build_and_count(root: str, counter: str) -> None:
    store = Store(Path(root))
    closure = python_closure(store)
    key = python.compute_environment_key(Digest.of_bytes(to_bytes(closure)), INTERPRETER)

    def make(folder: Path) -> None:
        with Path(counter).open("a") as stream:
            stream.write("built\n")
        python.build(folder, store.get_environment_folder(key), python.choose_packages(closure), INTERPRETER, store)

    store.build_environment(
        key, make, is_intact=lambda folder: python.audit(folder, closure, INTERPRETER, store) is None
    )


def test_two_starts_at_once_share_one_build(store: Store, tmp_path: Path) -> None:
    counter = tmp_path / "count"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_build_and_count, args=(str(store.root), str(counter))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(110)
        assert worker.exitcode == 0
    assert counter.read_text() == "built\n"


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.artifacts import test_environments as world
from pinwarden.artifacts.environments import store, tree
count = 0
def dying(call):
    def wrapper(*args, **kwargs):
        global count
        count += 1
        if count == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return wrapper
for name in ("open", "rename", "replace", "mkdir", "symlink", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
made = store.Store(Path(sys.argv[1]))
world.built_python(made, world.python_closure(made))
"""


@pytest.mark.parametrize("instant", [1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61])
def test_a_kill_at_any_instant_leaves_no_half_built_environment_in_use(store: Store, instant: int) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", KILLED, str(store.root), str(instant)], check=False, cwd=root)
    assert done.returncode in (0, -signal.SIGKILL)
    closure = python_closure(store)
    folder = store.get_environment_folder(
        python.compute_environment_key(Digest.of_bytes(to_bytes(closure)), INTERPRETER)
    )
    if folder.exists():
        assert python.audit(folder, closure, INTERPRETER, store) is None
    built_python(store, closure)
    assert run_python(folder, closure).startswith("approved")
    assert not list((store.root / "environments").glob(".building-*"))


def test_a_store_that_others_may_write_to_is_refused(store: Store) -> None:
    (store.root / "files").mkdir(parents=True)
    (store.root / "files").chmod(0o777)
    with pytest.raises(PinwardenError) as caught:
        put(store, b"x")
    assert caught.value.code == "STORE_UNSAFE"
