"""A handshake-era server on stdio that starts in a few milliseconds and reports everything it was asked.

``python -I -S witness.py REPORT``: at the end of its input it appends one line to the file: its own nonce, how many
calls it executed, the secrets in them, and how many lines were no message. It imports nothing but ``os`` and ``sys``,
so messages are searched as text: the gateway sends them as the client wrote them.
"""

import os
import sys

TOOL = '{"name":"echo","description":"Echoes a secret.","inputSchema":{"type":"object"}}'
INFO = '"serverInfo":{"name":"witness","version":"1"},"capabilities":{"tools":{}}'


def value(line: str, name: str) -> str:
    """The text of a member, as it stands in the message."""
    _, _, rest = line.partition(f'"{name}":')
    rest = rest.strip()
    if rest[:1] == '"':
        return rest[: rest.index('"', 1) + 1]
    end = min(place for place in (rest.find(","), rest.find("}")) if place >= 0)
    return rest[:end].strip()


def main() -> None:
    nonce = os.urandom(8).hex()
    secrets: list[str] = []
    noise = 0
    left = b""
    while data := os.read(0, 1 << 16):
        *lines, left = (left + data).split(b"\n")
        for raw in lines:
            line = raw.decode("latin-1")
            if not line.startswith("{") or not line.rstrip().endswith("}"):
                noise += 1
                continue
            method = value(line, "method")
            if method == '"initialize"':
                result = f'{{"protocolVersion":"2025-11-25",{INFO}}}'
            elif method == '"tools/list"':
                result = f'{{"tools":[{TOOL}]}}'
            elif method == '"tools/call"':
                secrets.append(value(line, "secret").strip('"'))
                result = f'{{"content":[{{"type":"text","text":"{nonce} {secrets[-1]}"}}]}}'
            elif '"id":' in line:
                error = '{"code":-32601,"message":"Method not found"}'
                os.write(1, f'{{"jsonrpc":"2.0","id":{value(line, "id")},"error":{error}}}\n'.encode("latin-1"))
                continue
            else:
                continue
            os.write(1, f'{{"jsonrpc":"2.0","id":{value(line, "id")},"result":{result}}}\n'.encode("latin-1"))
    report = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(report, f"{nonce} {len(secrets)} {','.join(sorted(set(secrets)))} {noise + bool(left)}\n".encode())


if __name__ == "__main__":
    main()
