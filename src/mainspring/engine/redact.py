"""What of a tool's output the model and the log may see: no secrets, and not too much of it."""

import re

from msgspec.structs import replace

from mainspring.items import InputText, OutputText, Part

REDACTED = "[redacted]"
_SCANNED = 1_000_000

_SECRETS = re.compile(
    r"""
    -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)   # PEM keys
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+                                                # JSON web tokens
    | \b(?:sk|pk|rk)[-_](?:live|test|proj|ant|or|svcacct)?[-_]?[A-Za-z0-9_-]{20,}      # OpenAI, Anthropic, Stripe and kin
    | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,} | \bglpat-[\w-]{20,}         # GitHub, GitLab
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b | \bAIza[\w-]{30,} | \bya29\.[\w-]{20,}            # AWS, Google
    | \bxox[abeoprs]-[\w-]{10,} | \bhf_[A-Za-z0-9]{30,} | \bnpm_[A-Za-z0-9]{30,}       # Slack, Hugging Face, npm
    | \bpypi-[\w-]{40,} | \bSG\.[\w-]{16,}\.[\w-]{16,} | \bdop_v1_[0-9a-f]{40,}        # PyPI, SendGrid, DigitalOcean
    """,
    re.VERBOSE | re.DOTALL,
)
_NAMED = re.compile(
    r"""
    (?P<keep>
        \b[a-z][a-z0-9+.-]*://[^\s:/@]*:                                               # scheme://user:
        | \b(?:authorization|proxy-authorization)["']?\s*[:=]\s*["']?(?:bearer|basic|token)\s+
        | (?:\b|_)(?:pass(?:word|wd|phrase)?|secret|token|(?:api|access|private)[_-]?key|client[_-]?secret|credentials?)
          ["']?\s*[:=]\s*["']?
    )
    (?P<secret>(?<=:)[^\s:/@]+(?=@)|[^\s"',;&}]{6,})
    """,
    re.VERBOSE | re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """The text with everything that looks like a key, token or password replaced, and fit to be written as UTF-8."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = _SECRETS.sub(REDACTED, text)
    return _NAMED.sub(lambda found: found["keep"] + REDACTED, text)


def shortened(text: str, max_chars: int | None) -> str:
    """The text's head and tail, with a note of how much is missing between them."""
    if max_chars is None or len(text) <= max_chars:
        return text
    head = max_chars - max_chars // 2
    tail = max_chars - head
    note = f"\n[... {len(text) - max_chars} characters left out ...]\n"
    return text[:head] + note + text[len(text) - tail :]


def presentable(output: str | tuple[Part, ...], max_chars: int | None) -> str | tuple[Part, ...]:
    """An output as it may be kept and shown to the model."""
    if isinstance(output, str):
        return shortened(without_secrets(shortened(output, _SCANNED)), max_chars)
    return tuple([_part(part, max_chars) for part in output])


def _part(part: Part, max_chars: int | None) -> Part:
    if isinstance(part, InputText | OutputText):
        return replace(part, text=shortened(without_secrets(part.text), max_chars))
    return part
