"""The files in ``deploy``: valid where they are used, pinned, without root, and with options that the gateway has."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from tests.gateway.http_gateway import stateless_request
from tests.gateway.test_gateway_command import Project, facts_of
from tests.support.needs import needs

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
NAME = re.compile(r"\[?([A-Za-z0-9._-]+)")
USER = 10001
KUBERNETES = "1.37"


def read_manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "gateway.yaml").read_text()))


def read_pod() -> dict[str, Any]:
    (spec,) = [each["spec"]["template"]["spec"] for each in read_manifests() if each["kind"] == "StatefulSet"]
    return dict(spec)


def read_compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


# Kubernetes


def test_the_kubernetes_manifests_are_valid_and_have_no_member_that_the_schemas_do_not_know() -> None:
    for manifest in read_manifests():
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    wrong = read_manifests()[1]
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_a_pod_has_no_root_no_privileges_and_nothing_writable_but_its_state() -> None:
    pod = read_pod()
    (container,) = pod["containers"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, USER)
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/var/lib/pinwarden", "/tmp"}
    assert re.fullmatch(r"[^@]+@sha256:[0-9a-f]{64}", container["image"])


def test_what_selects_pods_and_names_ports_agrees() -> None:
    manifests = read_manifests()
    labels = {"app.kubernetes.io/name": "pinwarden-gateway"}
    services = [each["spec"] for each in manifests if each["kind"] == "Service"]
    (stateful,) = [each["spec"] for each in manifests if each["kind"] == "StatefulSet"]
    assert stateful["template"]["metadata"]["labels"] == labels
    assert [service["selector"] for service in services] == [labels] * 2
    ports = {port["name"]: port["containerPort"] for port in read_pod()["containers"][0]["ports"]}
    assert ports == {"mcp": 8642, "metrics": 9464}
    assert {port["targetPort"] for service in services for port in service["ports"]} == set(ports)
    headless = [each["metadata"]["name"] for each in manifests if each.get("spec", {}).get("clusterIP") == "None"]
    assert headless == [stateful["serviceName"]]


# Compose


@needs("docker-compose", install="apt-get install docker-compose")
def test_the_compose_file_is_valid_and_asks_for_what_must_be_chosen(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "compose.yaml", tmp_path)
    for name in ("environment", "database-password"):
        (tmp_path / name).touch()
    chosen = {"PINWARDEN_IMAGE": "x@sha256:0", "POSTGRES_IMAGE": "y@sha256:0", "GATEWAY_HOST": "gateway.example"}

    def config(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        words = ["docker-compose", "-f", "compose.yaml", "config", "-q"]
        environment = {"PATH": os.environ["PATH"], **variables}
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)

    assert config(chosen).returncode == 0, config(chosen).stderr
    for name in chosen:
        assert config({key: value for key, value in chosen.items() if key != name}).returncode != 0
    text = (tmp_path / "compose.yaml").read_text()
    (tmp_path / "compose.yaml").write_text(text.replace("read_only:", "readonly:"))
    assert config(chosen).returncode != 0


def test_the_gateway_of_the_compose_file_has_no_root_and_no_privileges() -> None:
    gateway = read_compose()["services"]["gateway"]
    assert (gateway["user"], gateway["read_only"], gateway["cap_drop"]) == (f"{USER}:{USER}", True, ["ALL"])
    assert gateway["security_opt"] == ["no-new-privileges:true"]
    assert gateway["ports"] == ["8642:8642"], "the metrics are not published"


# systemd


@needs("systemd-analyze", install="apt-get install systemd")
def test_systemd_finds_no_problem_in_the_unit_and_little_exposure(tmp_path: Path) -> None:
    text = (DEPLOY / "pinwarden-gateway.service").read_text()
    unit = tmp_path / "pinwarden-gateway.service"
    unit.write_text(text.replace("/opt/pinwarden/bin/pinwarden", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    exposure = re.findall(r"exposure level for .*: ([0-9.]+)", done.stdout)
    assert (done.returncode, float(exposure[0]) <= 2.0) == (0, True), exposure
    unit.write_text(unit.read_text().replace("NoNewPrivileges=yes", "NoNewPrivilege=yes"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "Unknown key" in done.stderr


# The image


def test_all_deployed_commands_use_options_of_the_gateway() -> None:
    page = (REPOSITORY / "docs" / "reference" / "commands.md").read_text()
    section = page.partition("\n## `gateway`")[2].partition("\n## ")[0] or page
    known = set(re.findall(r"`(--[a-z-]+)`", section))
    (command,) = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    image, compose = json.loads(command), read_compose()["services"]["gateway"]["command"]
    for words in (image, compose, read_pod()["containers"][0]["args"]):
        assert words[0] == "gateway"
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options
        assert options <= known


def test_the_image_is_pinned_and_ends_without_root() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    steps = [line for line in lines if re.match(r"[A-Z]+ ", line)]
    assert [step for step in steps if step.startswith("FROM ")] == [
        "FROM ${PYTHON_IMAGE} AS build",
        "FROM ${PYTHON_IMAGE}",
    ]
    assert steps[0] == "ARG PYTHON_IMAGE", "without a default"
    assert f"USER {USER}:{USER}" in steps
    assert not any(step.startswith("ADD ") for step in steps)
    pinned = (REPOSITORY / "requirements" / "gateway.txt").read_text()
    have = set(re.findall(r"^([a-z0-9._-]+)==", pinned, re.MULTILINE))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = ("gateway", "postgres", "registry", "identity", "traces")
    wanted = [*project["dependencies"], *(each for name in extras for each in project["optional-dependencies"][name])]
    assert {Requirement(each).name for each in wanted} <= have


class Image:
    """The built image, mounted."""

    def __init__(self, root: Path, config: dict[str, Any], project: Path, state: Path) -> None:
        self.root = root
        self.config = config
        self._project = project
        self._state = state

    def command(self, *words: str) -> list[str]:
        """A command in the image as its user, with a read-only root and project, and a volume for the state."""
        mounts = [
            f"mount --bind {self.root} {self.root}",
            f"mount --bind {self._state} {self.root}/var/lib/pinwarden",
            f"mount --bind {self._project} {self.root}/etc/pinwarden",
            f"mount -o remount,ro,bind {self.root}/etc/pinwarden",
            f"mount --rbind /dev {self.root}/dev",
            f"mount -t proc proc {self.root}/proc",
            f"mount -t tmpfs tmpfs {self.root}/tmp",
            f"mount -o remount,ro,bind {self.root}",
        ]
        enter = f'exec chroot --userspec={self.config["User"]} {self.root} env -i -C {self.config["WorkingDir"]} "$@"'
        script = " && ".join([*mounts, enter])
        return ["unshare", "-m", "sh", "-c", script, "sh", *self.config["Env"], *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=False)


def buildah(folder: Path, *words: str) -> str:
    storage = ("--storage-driver", "vfs", "--root", str(folder / "root"), "--runroot", str(folder / "run"))
    return subprocess.run(["buildah", *storage, *words], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    """Build the image as the guide says, on a Debian made by debootstrap, with packages that pip downloaded before."""
    base, wheels, config = tmp_path / "base", tmp_path / "wheels", tmp_path / "pip.conf"
    include = "--include=python3,python3-venv"
    subprocess.run(
        ["debootstrap", "--variant=minbase", include, "bookworm", str(base)], check=True, capture_output=True
    )
    shutil.rmtree(base / "var/cache/apt")
    words = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version=3.11", "-d", str(wheels)]
    pinned = str(REPOSITORY / "requirements" / "gateway.txt")
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", *words, "-r", pinned], check=True)
    config.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    container = buildah(tmp_path, "from", "scratch")
    buildah(tmp_path, "copy", "-q", container, str(base), "/")
    buildah(tmp_path, "commit", "-q", container, "localhost/python-base")
    buildah(tmp_path, "rm", container)
    digest = buildah(tmp_path, "images", "--digests", "--format", "{{.Digest}}", "localhost/python-base")
    mounts = ("-v", f"{wheels}:/wheels:ro", "-v", f"{config}:/etc/pip.conf:ro")
    options = ("--isolation", "chroot", "--build-arg", f"PYTHON_IMAGE=localhost/python-base@{digest}", *mounts)
    buildah(tmp_path, "bud", "-q", *options, "-f", str(DEPLOY / "Containerfile"), "-t", "pinwarden", str(REPOSITORY))
    about = json.loads(buildah(tmp_path, "inspect", "--type", "image", "pinwarden"))["OCIv1"]["config"]
    root = Path(buildah(tmp_path, "mount", buildah(tmp_path, "from", "pinwarden")))
    folders = [tmp_path / name for name in ("project", "state")]
    for folder in folders:
        folder.mkdir(mode=0o755)
    os.chown(folders[1], USER, USER)
    yield Image(root, about, *folders)
    buildah(tmp_path, "umount", "--all")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a Debian and mounts an image")
@needs("buildah", install="apt-get install buildah")
@needs("debootstrap", install="apt-get install debootstrap")
def test_the_image_is_built_and_serves_without_root_on_a_read_only_root(image: Image, tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "examples" / "notes_server.py", tmp_path / "project")
    project = Project(tmp_path / "project")
    project.environment |= {"PINWARDEN_STATE": str(tmp_path / "other-state"), "HOME": str(tmp_path / "home")}
    project.lock({"notes": {"command": "python3", "args": ["notes_server.py"]}})
    for path in [project.root, *project.root.rglob("*")]:
        os.chown(path, USER, USER)  # it may read them, and the mount is read-only
    token = image.run(*image.config["Entrypoint"], "gateway", "token", "add", "ada").stdout.strip()
    assert token.startswith("pwt_")
    asked = "import os; print(os.getuid(), bool(os.statvfs('/').f_flag & os.ST_RDONLY))"
    assert image.run("/opt/pinwarden/bin/python", "-c", asked).stdout == f"{USER} True\n"
    for name in ("/etc/pinwarden/mcp-lock.json", "/opt/pinwarden/bin/pinwarden", "/x"):
        assert image.run("/opt/pinwarden/bin/python", "-c", f"open({name!r}, 'a')").returncode == 1
    addresses = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--allow-execute", "--format", "json")
    command = image.command(*image.config["Entrypoint"], *image.config["Cmd"], *addresses)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        port = int(facts_of(process)["merged"].rpartition(":")[2].partition("/")[0])
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(rf"^Uid:\t{USER}\t{USER}", status, re.MULTILINE), "what runs is not root"
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        body, headers = stateless_request("tools/list")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        given = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        connection.request("POST", "/mcp/notes", body, given)
        listed = json.loads(connection.getresponse().read())
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    assert "search_notes" in [tool["name"] for tool in listed.get("result", {}).get("tools", [])], (listed, said)
    for line in said.splitlines():
        assert json.loads(line).keys() == {"time", "level", "message"}
    verified = image.run(*image.config["Entrypoint"], "audit", "verify")
    assert verified.returncode == 0, verified.stderr
