"""Finds the registry of an image reference, and the credential that docker or podman would use for it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

from pinwarden.artifacts.oci_auth import HUB_KEY, Credential, DockerConfig, parse_docker_config, parse_helper_output
from pinwarden.artifacts.oci_reference import HUB, ImageReference
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.files import find_program, find_relative_search_folders, read_file
from pinwarden.system.net.connections import Origin, ServiceEndpoint, SettingsSources
from pinwarden.system.processes import ProcessTree

_HUB_ADDRESS = "https://registry-1.docker.io/v2/"  # the host docker contacts for docker.io
_MAX_CONFIG = 1024 * 1024
_MAX_OUTPUT = 64 * 1024
_NOT_FOUND = b"credentials not found in native keychain"  # in docker's helper protocol: the helper has no credential
_SYSTEM_CERTIFICATE_FOLDERS = (Path("/etc/docker/certs.d"), Path("/etc/containers/certs.d"))


class HelperLimits(Record):
    """Limits for running a credential helper."""

    seconds: float = 30.0
    """Long enough for the user to unlock a keychain."""


def find_registry_endpoint(
    reference: ImageReference, settings: SettingsSources, *, configured_by: Origin, limits: HelperLimits | None = None
) -> ServiceEndpoint:
    """Return the endpoint of an image's registry.

    ``configured_by`` says who named the image. A registry that the user logged in to counts as named by the user.
    Like docker, uses plain HTTP for a registry on this machine without a CA certificate, and otherwise HTTPS.
    """
    ca_file = _find_ca_file(reference, settings)
    use_http = reference.is_loopback and ca_file is None and not reference.host.endswith(":443")
    url = _HUB_ADDRESS if reference.host == HUB else f"{'http' if use_http else 'https'}://{reference.host}/v2/"
    for path, config in _read_configs(settings):
        credential = _find_credential(config, reference, settings, limits or HelperLimits())
        if credential is not None or config.has_entry_for(reference):
            return ServiceEndpoint(
                url=url,
                configured_by="user",
                source=str(path),
                authorization=credential.authorization if credential else None,
                ca_file=ca_file,
            )
    return ServiceEndpoint(url=url, configured_by=configured_by, source=f"the image {reference}", ca_file=ca_file)


def _read_configs(settings: SettingsSources) -> Iterator[tuple[Path, DockerConfig]]:
    """Yield the parsed credential files, highest precedence first."""
    for path in _list_config_paths(settings):
        if path.exists():
            yield path, parse_docker_config(read_file(path, _MAX_CONFIG), str(path))


def _list_config_paths(settings: SettingsSources) -> Iterator[Path]:
    variables, home = settings.variables, settings.home
    if path := variables.get("REGISTRY_AUTH_FILE"):
        yield Path(path)
    yield Path(variables.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if runtime := variables.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"
    yield Path(variables.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"


def _find_credential(
    config: DockerConfig, reference: ImageReference, settings: SettingsSources, limits: HelperLimits
) -> Credential | None:
    if helper := config.find_helper(reference):
        return _run_helper(helper, reference, settings, limits)
    if config.default_helper:
        try:
            credential = _run_helper(config.default_helper, reference, settings, limits)
        except PinwardenError:
            # The default helper runs for every registry. Like docker, continue without it.
            credential = None
        if credential is not None:
            return credential
    return config.find_credential(reference)


def _run_helper(
    name: str, reference: ImageReference, settings: SettingsSources, limits: HelperLimits
) -> Credential | None:
    """Run ``docker-credential-<name> get``, as configured in the user's own settings."""
    program = f"docker-credential-{name}"
    search_path = settings.variables.get("PATH", "")
    path = None if find_relative_search_folders(search_path) else find_program(program, search_path)
    if path is None:
        raise _build_helper_error(program, "was not found in PATH, or PATH has a relative folder")
    status, output = _run_program(path, _get_helper_input(reference), settings, limits)
    if status == 0:
        return parse_helper_output(output, program)
    if output.strip() == _NOT_FOUND:
        return None
    raise _build_helper_error(program, "failed")  # its output may contain a secret


def _get_helper_input(reference: ImageReference) -> bytes:
    return (HUB_KEY if reference.host == HUB else reference.host).encode()


def _run_program(
    program: Path, helper_input: bytes, settings: SettingsSources, limits: HelperLimits
) -> tuple[int, bytes]:
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell, and the name was checked
            [str(program), "get"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(settings.variables),
            cwd=settings.home,
            start_new_session=True,
        )
    except OSError as err:
        raise _build_helper_error(program.name, "could not be started") from err
    tree = ProcessTree(process)
    timer = Timer(limits.seconds, tree.kill)
    timer.start()
    try:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - they are pipes
        with process.stdin, process.stdout:
            try:
                process.stdin.write(helper_input)
                process.stdin.close()
            except OSError:
                pass  # the helper exited without reading its input
            output = process.stdout.read(_MAX_OUTPUT + 1)
        if len(output) > _MAX_OUTPUT:
            raise _build_helper_error(program.name, f"printed more than {_MAX_OUTPUT} bytes")
    finally:
        timer.cancel()
        tree.end(1.0)
    return process.returncode, output


def _build_helper_error(program: str, problem: str) -> PinwardenError:
    return PinwardenError("FETCH_FAILED", f"{program} {problem}", data={"reason": "unauthorized"})


def _find_ca_file(reference: ImageReference, settings: SettingsSources) -> Path | None:
    """Return the CA certificate that docker's or podman's settings add for one registry."""
    config = Path(settings.variables.get("XDG_CONFIG_HOME") or settings.home / ".config")
    user_folders = (config / "docker" / "certs.d", config / "containers" / "certs.d")
    for folder in (*user_folders, *_SYSTEM_CERTIFICATE_FOLDERS):
        file = folder / reference.host / "ca.crt"
        if file.is_file():
            return file
    return None
