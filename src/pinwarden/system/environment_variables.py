"""Environment variables: those that change what an approved command does, those that a server inherits, and names.

`is_redirecting_variable` knows the variables that decide which code runs, where packages come from or who responds.
`build_child_environment` gives a probed server a short list of harmless variables and those that its configuration
sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pinwarden.core.text import lazy_pattern
from pinwarden.system.target import parse_name_set

_REDIRECTING_NAMES = parse_name_set(
    # which program or library is found
    "PATH PATHEXT COMSPEC SHELL HOME USERPROFILE GCONV_PATH PSMODULEPATH OPENSSL_CONF OPENSSL_MODULES OPENSSL_ENGINES "
    # what an interpreter loads before the program
    "NODE_OPTIONS NODE_PATH NODE_REPL_EXTERNAL_MODULE NODE_COMPILE_CACHE BUN_OPTIONS DENO_AUTH_TOKENS "
    "ELECTRON_RUN_AS_NODE "
    "PYTHONPATH PYTHONSTARTUP PYTHONHOME PYTHONUSERBASE PYTHONBREAKPOINT PYTHONPLATLIBDIR "
    "PYTHONPYCACHEPREFIX PYTHONWARNINGS PYTHONEXECUTABLE "
    "BASH_ENV ENV ZDOTDIR PROMPT_COMMAND SHELLOPTS BASHOPTS PS4 PERL5OPT PERL5LIB PERL5DB PERLLIB RUBYOPT RUBYLIB "
    "RUBYGEMS_GEMDEPS PHPRC PHP_INI_SCAN_DIR LUA_PATH LUA_CPATH JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS "
    "JAVA_OPTS CLASSPATH DOTNET_STARTUP_HOOKS DOTNET_ADDITIONAL_DEPS DOTNET_SHARED_STORE "
    # which helper programs are started
    "EDITOR VISUAL PAGER BROWSER LESSOPEN LESSCLOSE SSH_ASKPASS GIT_ASKPASS GIT_EDITOR GIT_PAGER GIT_EXTERNAL_DIFF "
    "GIT_TEMPLATE_DIR GIT_DIR "
    # where packages and their settings come from
    "PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE PIP_FIND_LINKS PIP_TRUSTED_HOST "
    "UV_INDEX UV_INDEX_URL UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_CONFIG_FILE UV_FIND_LINKS UV_INSECURE_HOST "
    "PIP_CONSTRAINT PIP_REQUIREMENT PIP_TARGET PIP_PROXY UV_ENV_FILE UV_PROJECT UV_PROJECT_ENVIRONMENT UV_OVERRIDE "
    "UV_WORKING_DIRECTORY UV_CONSTRAINT UV_BUILD_CONSTRAINT UV_INDEX_STRATEGY UV_PYTHON_DOWNLOADS_JSON_URL "
    "UV_PYTHON_INSTALL_DIR UV_TOOL_DIR UV_PYTHON BUN_CONFIG_REGISTRY JSR_URL "
    "NPM_REGISTRY NUGET_PACKAGES GOPROXY GONOSUMDB GOFLAGS CARGO_HOME RUSTC_WRAPPER XDG_CONFIG_HOME "
    # which machine runs the code or is a proxy
    "DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG CONTAINER_HOST CONTAINER_CONNECTION BUILDKIT_HOST HOSTALIASES "
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY "
    "SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS NODE_TLS_REJECT_UNAUTHORIZED REQUESTS_CA_BUNDLE CURL_CA_BUNDLE "
    "AWS_CA_BUNDLE SSLKEYLOGFILE "
    "PYTHONHTTPSVERIFY GIT_SSH GIT_SSH_COMMAND GIT_PROXY_COMMAND GIT_EXEC_PATH GIT_SSL_NO_VERIFY"
)
_REDIRECTING_PATTERN = lazy_pattern(
    r"NPM_CONFIG_.+|LD_.+|DYLD_.+|GIT_CONFIG.*|COMPLUS_.+|COR_.+|CORECLR_.+|LUA_INIT.*|BASH_FUNC_.+|TS_NODE_.+|YARN_.+|"
    r"COREPACK_.+|BUNDLE_.+|CONTAINERS_.+|.+_(?:DOWNLOAD_HOST|DOWNLOAD_BASE_URL|BINARY_HOST|INSTALL_MIRROR)|"
    r"(?:ANTHROPIC|OPENAI|AZURE_OPENAI|GEMINI|GOOGLE|MISTRAL|COHERE|OLLAMA|OPENROUTER|BEDROCK|VERTEX|CLAUDE)"
    r"(?:_[A-Z0-9]+)*_(?:BASE_URL|API_BASE|ENDPOINT|HOST|CUSTOM_HEADERS)"
)


def is_redirecting_variable(name: str) -> bool:
    """Whether a variable with this name changes what an approved command does. Case is ignored."""
    upper = name.upper()
    return upper in _REDIRECTING_NAMES or bool(_REDIRECTING_PATTERN.fullmatch(upper))


# The variables that programs need to start and to choose a language. None of these is a secret.
_INHERITED_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP"),
        *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "USERPROFILE", "HOMEDRIVE", "HOMEPATH"),
        *("APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROCESSOR_ARCHITECTURE"),
        # Certificate paths: with a company's own certificate authority, downloads fail without them.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"),
    }
)


def build_child_environment(
    own: Mapping[str, str], inherited: Mapping[str, str], also: Iterable[str] = ()
) -> dict[str, str]:
    """Return the variables of a server: harmless inherited ones and those named in ``also``, overridden by its own."""
    allowed = {*_INHERITED_NAMES, *also}
    kept = {
        name: value
        for name, value in inherited.items()
        if name in allowed or name.upper() in _INHERITED_NAMES or name.startswith("LC_")
    }
    return {**kept, **own}


_NOT_IN_NAME = lazy_pattern(r"[^A-Za-z0-9_]")


def to_variable_name(name: str) -> str:
    """Return a valid environment variable name: ``X-Api-Key`` becomes ``X_API_KEY``."""
    if not _NOT_IN_NAME.search(name) and not name[:1].isdigit():
        return name
    plain = _NOT_IN_NAME.sub("_", name.strip("-<>{}")).upper()
    return f"_{plain}" if plain[:1].isdigit() else plain or "VALUE"
