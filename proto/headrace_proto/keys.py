"""Keys as text: the content of the files that ``headrace keygen`` writes.

    NAME.secret     # words for people              server.secret, server.public: the server's
                    curve-secret: 40 characters     alice.secret, alice.public: a trainer's
    NAME.public     # words for people
                    curve-public: 40 characters

A key is a Curve25519 key of CurveZMQ in ZeroMQ's own text form (Z85).  No error and no ``repr``
of this module shows a text that might be a secret.
"""

from __future__ import annotations

import re

#: The variable that names a trainer's keys where no argument does.
ENVIRONMENT = "HEADRACE_KEYS"
SECRET = ".secret"
PUBLIC = ".public"
#: Name of the server's own pair of keys; no trainer may have this name.
SERVER = "server"

_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Secret:
    """A secret key that does not show itself."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> str:
        raise TypeError("a secret key is not to be pickled")


def check_name(argument: str, name: object) -> str:
    """Return the name of a trainer.  ValueError names the argument."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{argument}={name!r:.80} is not letters, digits, '_', '.', '-' (1 to 64), of which a "
            "dot or a dash is not the first"
        )
    if name == SERVER:
        raise ValueError(f"{argument}={name!r} is what the server's own pair is called")
    return name


def fault_of_mode(mode: int, secret: bool) -> str:
    """Return the fault in the permissions of a file or directory of keys; empty if there is none.

    A group may read a secret: so orchestrators give one to a user that does not own the file.
    """
    if mode & 0o002:
        return f"can be written by everybody (mode {mode & 0o777:04o}): chmod o-w"
    if secret and mode & 0o024:
        who = "read by everybody" if mode & 0o004 else "written by its group"
        return f"can be {who} (mode {mode & 0o777:04o}): chmod 600"
    return ""


def secret_text(owner: str, key: str) -> str:
    """Return the text of a file with a secret key; the owner is ``SERVER`` or a trainer's name."""
    owner = "the server" if owner == SERVER else owner
    return (
        f"# headrace: the SECRET key of {owner}.  Whoever has it can pose as {owner}:\n"
        "# it stays on the machine that uses it, readable by that user only.\n"
        f"curve-secret: {key}\n"
    )


def public_text(owner: str, key: str) -> str:
    """Return the text of a file with a public key; the owner is ``SERVER`` or a trainer's name."""
    use = "The server has a copy in the directory trainers/ of its keys."
    if owner == SERVER:
        owner, use = "the server", "Every trainer has a copy beside its own secret key."
    return f"# headrace: the public key of {owner}.  {use}\ncurve-public: {key}\n"


def parse_secret(text: str, where: str) -> Secret:
    """Return the secret key in the text of a file; ``where`` names the file in the ValueError."""
    return Secret(_parsed(text, "curve-secret", where))


def parse_public(text: str, where: str) -> str:
    """Return the public key in the text of a file; ``where`` names the file in the ValueError."""
    return _parsed(text, "curve-public", where)


def _parsed(text: str, field: str, where: str) -> str:
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("# "):
            continue
        name, _, value = line.partition(": ")
        if name == field:
            found.append(value.strip())
        elif name in ("curve-secret", "curve-public"):
            raise ValueError(f"{where} holds a {name}, where a {field} is expected")
        else:
            raise ValueError(f"{where} holds a line that is neither a comment nor {field}: …")
    if len(found) != 1:
        raise ValueError(f"{where} holds {len(found)} lines {field}: …, not one")
    if not _KEY.fullmatch(found[0]):
        raise ValueError(f"{where}: what follows {field}: is no key of 40 characters of Z85")
    return found[0]
