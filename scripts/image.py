"""Build the image of deploy/Containerfile, and its base too where no registry can be reached.

The base of a published image is the one that the Containerfile names. `debian` stands for a root file system of Debian
that mmdebstrap makes here: `make release IMAGE_BASE=debian` pulls nothing. Inside the build pip uses the certificates
of this machine. Commands of the build run in a changed root, which needs neither root nor a container runtime.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILDERS = ("buildah", "podman")
#: What the base of the image needs: a Python with venv.
_PACKAGES = "ca-certificates,python3-venv"
_SUITE = "bookworm"
_BASE_NAME = "localhost/posthouse-base"
_PATIENCE_S = 900


class ImageError(Exception):
    """The image could not be built; the message says why."""


def find_builder() -> str | None:
    """Return the first installed program that builds images without a daemon, or None."""
    return next((each for each in BUILDERS if shutil.which(each)), None)


class ImageBuilder:
    """Builds images with one program; `options` come before its verb, for example the directory for images."""

    def __init__(self, program: str, options: Sequence[str] = ()) -> None:
        self.program = program
        self._options = options

    def build(self, context: Path, name: str, base: str | None, timestamp: str) -> None:
        """Build the image from a folder with the wheel and requirements.txt, on the named base or that of the file."""
        arguments = [] if base is None else ["--build-arg", f"BASE={self._make_base() if base == 'debian' else base}"]
        certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
        if certificates:
            arguments += ["--volume", f"{certificates}:{certificates}:ro", "--build-arg", f"PIP_CERT={certificates}"]
        file = ROOT / "deploy" / "Containerfile"
        arguments += ["--isolation", "chroot", "--format", "docker"]  # the other format has no health check
        self.run("build", *arguments, "--timestamp", timestamp, "--file", file, "--tag", name, context)

    def _make_base(self) -> str:
        """Make an image of a root file system of Debian, and return its name."""
        if shutil.which("mmdebstrap") is None:
            raise ImageError("IMAGE_BASE=debian needs mmdebstrap")
        with tempfile.TemporaryDirectory() as scratch:
            archive, file = Path(scratch, "base.tar"), Path(scratch, "Containerfile")
            _run("mmdebstrap", "--verbose", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, archive)
            file.write_text("FROM scratch\nADD base.tar /\n")
            self.run("build", "--file", file, "--tag", _BASE_NAME, scratch)
        return _BASE_NAME

    def run(self, *words: object) -> str:
        """Run the program and return its output."""
        return _run(self.program, *self._options, *words)


def _run(*words: object) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    if done.returncode:
        raise ImageError(f"`{' '.join(command)}` failed:\n{done.stdout[-4_000:]}{done.stderr[-4_000:]}")
    return done.stdout.strip()
