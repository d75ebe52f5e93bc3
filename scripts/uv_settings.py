"""Prints pip's settings, from its files and the environment, as variables that uv reads: uv knows none of pip's own.

Usage: python -m pip config list | uv_settings.py
"""

import ast
import os
import shlex
import sys

settings: dict[str, str] = {}
for line in sys.stdin:
    # `global.index-url='...'`, or `:env:.index-url='...'`, which comes first and counts more
    name, _, value = line.strip().partition("=")
    settings.setdefault(name.rpartition(".")[2], str(ast.literal_eval(value)))

found = {
    "UV_DEFAULT_INDEX": settings.get("index-url"),
    "UV_INDEX": settings.get("extra-index-url"),
    "UV_FIND_LINKS": ",".join(settings.get("find-links", "").split()),
    "UV_NO_INDEX": settings.get("no-index"),
    "UV_INSECURE_HOST": settings.get("trusted-host"),
    "UV_HTTP_TIMEOUT": settings.get("default-timeout") or settings.get("timeout"),
    "SSL_CERT_FILE": settings.get("cert"),
    "ALL_PROXY": settings.get("proxy"),
}
for name, value in found.items():
    if value and name not in os.environ:
        print(f"export {name}={shlex.quote(value)}")
