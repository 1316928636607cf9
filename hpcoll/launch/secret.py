"""The secret that ranks of a job know and other users do not: given by the program, by a variable, or a file in the user's own folder."""

import hashlib
import hmac
import os
import secrets
from contextlib import closing

from hpcoll.base import disk_cache
from hpcoll.base.errors import TransportError
from hpcoll.base.files import OwnedFolder

VARIABLE = "HPCOLL_KEY"
_FILE = "key"
_NBYTES = 32


def secret(given: str | bytes | None = None) -> bytes:
    """Return the secret: the given one, that of ``HPCOLL_KEY``, or the one in the user's file, which is made where it is missing.

    Processes of the user on hosts that share the home folder find the same file. TransportError: no folder takes the file.
    """
    given = given or os.environ.get(VARIABLE, "").strip()
    if given:
        return given.encode() if isinstance(given, str) else given
    problems = []
    for open_folder in (disk_cache.own_folder, disk_cache.lock_folder):
        try:
            with closing(open_folder()) as folder:
                return _of_file(folder)
        except OSError as error:
            problems.append(str(error))
    raise TransportError(
        f"no folder takes the key by which ranks know each other: {'; '.join(problems)}: set {VARIABLE}"
    )


def _of_file(folder: OwnedFolder) -> bytes:
    try:
        return folder.read(_FILE)
    except FileNotFoundError:
        folder.write_new(_FILE, secrets.token_bytes(_NBYTES))
        return folder.read(_FILE)


def derived(key: bytes, *purposes: str | bytes) -> bytes:
    """Return 32 bytes for a purpose, from which nobody can tell the key."""
    words = [word.encode() if isinstance(word, str) else word for word in purposes]
    text = b"".join(hashlib.sha256(word).digest() for word in words)
    return hmac.digest(key, text, "sha256")
