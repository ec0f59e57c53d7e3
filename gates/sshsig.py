"""SSHSIG through the `ssh-keygen` people already have (OpenSSH 8.1 or later), so that hardware keys and agents work."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from bitgate.gates.errors import SignatureRefused
from bitgate.gates.rows import NAMESPACE

TIMEOUT_S: Final = 60.0
MAX_SIGNATURE: Final = 64 * 1024
BEGIN: Final = "-----BEGIN SSH SIGNATURE-----"


def ssh_keygen() -> str:
    """The program's path.

    Raises:
        SignatureRefused: it is not installed.
    """
    found = shutil.which("ssh-keygen")
    if found is None:
        raise SignatureRefused("ssh-keygen is not on PATH; install OpenSSH's client (Debian: openssh-client).")
    return found


def sign(message: str, key: Path) -> str:
    """The armored signature of `message` in namespace `bitgate`. May ask for a passphrase or a touch on the terminal.

    Raises:
        SignatureRefused: ssh-keygen would not sign with this key.
    """
    with tempfile.TemporaryDirectory(prefix="bitgate-sign-") as folder:
        text = Path(folder) / "message"
        text.write_bytes(message.encode("utf-8"))
        done = _run(["-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(text)])
        signature = text.with_suffix(".sig")
        if done.returncode != 0 or not signature.exists():
            raise SignatureRefused(f"key: ssh-keygen would not sign with {key}: {_said(done)}")
        return signature.read_text(encoding="ascii")


def verify(message: str, signature: str, signer: str, allowed_signers: str) -> str:
    """Why the signature does not hold; empty when it does. Results are remembered: a signature never changes."""
    if len(signature) > MAX_SIGNATURE or not signature.startswith(BEGIN):
        return "it is not an SSH signature (ssh-keygen -Y sign)"
    return _verify(message, signature, signer, allowed_signers)


@lru_cache(maxsize=4096)
def _verify(message: str, signature: str, signer: str, allowed_signers: str) -> str:
    with tempfile.TemporaryDirectory(prefix="bitgate-verify-") as folder:
        paths = _write(Path(folder), {"signers": allowed_signers, "sig": signature})
        done = _run(
            ["-Y", "verify", "-f", paths["signers"], "-I", signer, "-n", NAMESPACE, "-s", paths["sig"]],
            message.encode("utf-8"),
        )
        return "" if done.returncode == 0 else _said(done)


def find_signer(signature: str, allowed_signers: str) -> str:
    """Who of the reviewers holds the key that made this signature.

    Raises:
        SignatureRefused: nobody of them.
    """
    if len(signature) > MAX_SIGNATURE or not signature.startswith(BEGIN):
        raise SignatureRefused(
            f"signature: this is not an SSH signature; make one with ssh-keygen -Y sign -n {NAMESPACE}."
        )
    with tempfile.TemporaryDirectory(prefix="bitgate-verify-") as folder:
        paths = _write(Path(folder), {"signers": allowed_signers, "sig": signature})
        done = _run(["-Y", "find-principals", "-f", paths["signers"], "-s", paths["sig"]])
    names = done.stdout.decode("utf-8", "replace").split()
    if done.returncode != 0 or not names:
        raise SignatureRefused(
            "signature: made by a key that belongs to none of the reviewers (see `bitgate reviewers`)."
        )
    return names[0]


def _write(folder: Path, contents: Mapping[str, str]) -> dict[str, str]:
    for name, text in contents.items():
        (folder / name).write_bytes(text.encode("utf-8"))
    return {name: str(folder / name) for name in contents}


def _run(arguments: list[str], stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            [ssh_keygen(), *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SignatureRefused(
            f"ssh-keygen did not answer in {TIMEOUT_S:.0f} s (does the key wait for a touch?)"
        ) from error


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return text.splitlines()[-1][:300] if text else f"exit {done.returncode}"
