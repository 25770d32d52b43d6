"""Build a release into dist/: `make release`.

A release is the sdist, the wheel, a bill of materials (CycloneDX) of what uv.lock names, the notes of the version from
CHANGELOG.md, an image where a builder is installed, and SHA256SUMS over all of them. The wheel is built twice and must
have the same bytes; then it is installed into an environment of its own, where two agents exchange a message. A version
that the changelog does not describe is refused. Nothing is uploaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from posthouse.model.clock import format_utc
from posthouse.model.limits import SECOND_NS
from posthouse.version import __version__
from scripts.image import BUILDERS, ImageBuilder, ImageError, find_builder

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
SBOM_FORMAT = "cyclonedx1.5"
PATIENCE_S = 600
_SECTION = re.compile(r"^## (?P<version>\S+)[^\n]*\n(?P<notes>.*?)(?=^## |\Z)", re.M | re.S)


class ReleaseError(Exception):
    """The release could not be built; the message says why."""


def main(dist: Path) -> None:
    """Build everything into an empty directory, and report each step."""
    notes = release_notes((ROOT / "CHANGELOG.md").read_text(), __version__)
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    (dist / f"posthouse-{__version__}-notes.md").write_text(notes)
    wheel = build("wheel", dist)
    build("sdist", dist)
    check_reproducible(wheel)
    say(f"built {wheel.name} twice: the same bytes")
    (dist / f"posthouse-{__version__}.cdx.json").write_text(bill_of_materials())
    (dist / "requirements.txt").write_text(image_requirements())
    with tempfile.TemporaryDirectory() as scratch:
        environment = install(wheel, Path(scratch) / "env")
        smoke(environment / "bin" / "posthouse", Path(scratch) / "home")
    say("installed the wheel: two agents have exchanged a message")
    build_image(wheel, dist)
    (dist / "SHA256SUMS").write_text(checksums(path for path in sorted(dist.iterdir())))
    say("\n".join(f"  dist/{path.name}" for path in sorted(dist.iterdir())))


def release_notes(changelog: str, version: str) -> str:
    """Return what the changelog says about a version; raises if it says nothing."""
    sections = {match["version"]: match["notes"].strip() for match in _SECTION.finditer(changelog)}
    if not sections.get(version):
        raise ReleaseError(f"CHANGELOG.md has no section `## {version}` with text in it")
    return sections[version] + "\n"


def build(kind: str, folder: Path, root: Path = ROOT) -> Path:
    """Build the wheel or the sdist of a tree, reproducibly: its files get the time of the last commit."""
    before = set(folder.iterdir())
    times = {"SOURCE_DATE_EPOCH": commit_time()}
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=root, environ=times)
    [built] = set(folder.iterdir()) - before
    return built


def commit_time() -> str:
    """Return the time of the last commit, or a fixed time outside of a repository."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "1577836800"


def check_reproducible(wheel: Path) -> None:
    """Build the wheel again from a copy of the tree at another place; raises if a byte differs."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "tree"
        copy.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
            shutil.copyfile(ROOT / name, copy / name)  # without its times
        shutil.copytree(ROOT / "src", copy / "src", copy_function=shutil.copyfile)
        again = build("wheel", copy.parent, copy)
        if again.read_bytes() != wheel.read_bytes():
            raise ReleaseError(f"{wheel.name} differs when it is built again: compare both with diffoscope")


def bill_of_materials() -> str:
    """Return the CycloneDX document of the product with all extras; development tools are not in it.

    uv leaves out the version of the product and makes up a time and a serial number: here they follow from the
    commit and the content, so that the same tree has the same document.
    """
    words = ("export", "--quiet", "--frozen", "--format", SBOM_FORMAT, "--extra", "all", "--no-dev")
    document = json.loads(run(UV, *words, "--preview-features", "sbom-export"))
    product = {"version": __version__, "purl": f"pkg:pypi/posthouse@{__version__}"}
    document["metadata"]["component"] |= product
    document["metadata"]["timestamp"] = format_utc(int(commit_time()) * SECOND_NS)
    del document["serialNumber"]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return json.dumps(document | {"serialNumber": f"urn:uuid:{serial}"}, indent=2) + "\n"


def image_requirements() -> str:
    """Return what the image installs besides the wheel, by hash."""
    extras = [word for extra in ("fast", "postgresql", "ssh") for word in ("--extra", extra)]
    return run(UV, "export", "--quiet", "--frozen", "--no-emit-project", *extras)


def install(wheel: Path, environment: Path, python: str = sys.executable) -> Path:
    """Install the wheel without extras into a new environment, with the versions of uv.lock; return the environment."""
    pinned = run(UV, "export", "--quiet", "--frozen", "--no-emit-project", "--no-hashes")
    environment.parent.mkdir(parents=True, exist_ok=True)
    requirements = environment.with_suffix(".txt")
    requirements.write_text(pinned)
    run(UV, "venv", "--quiet", "--python", python, environment)
    target = environment / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--no-compile-bytecode", "--python", target, "-r", requirements, wheel)
    return environment


def smoke(posthouse: Path, home: Path) -> None:
    """Start posthouse as a new user would, let one agent write to another, and stop it; raises if something fails."""
    where = {"POSTHOUSE_HOME": str(home), "POSTHOUSE_RELAY_LISTEN": "127.0.0.1:0"}
    run(posthouse, "version", environ=where)
    try:
        run(posthouse, "up", environ=where)
        for agent in ("claude", "codex"):
            run(posthouse, "agent", "add", agent, environ=where)
        run(posthouse, "send", "claude", "the build is green", "--agent", "codex", environ=where)
        if "the build is green" not in run(posthouse, "inbox", "wait", "--agent", "claude", environ=where):
            raise ReleaseError("the message of the smoke test did not arrive")
    finally:
        run(posthouse, "down", environ=where)


def build_image(wheel: Path, dist: Path) -> None:
    """Build the image of deploy/Containerfile with the wheel, if buildah or podman is installed; else say so."""
    program = find_builder()
    if program is None:
        say(f"no image: neither {' nor '.join(BUILDERS)} is installed")
        return
    name = f"posthouse:{__version__}"
    archive = dist / f"posthouse-{__version__}.docker.tar"
    builder = ImageBuilder(program)
    base = os.environ.get("IMAGE_BASE") or None
    try:
        builder.build(wheel.parent, name, base, commit_time())
        builder.run("push", name, f"docker-archive:{archive}:{name}")
    except ImageError as failure:
        hint = "\nhint: Without a registry: make release IMAGE_BASE=debian" if base is None else ""
        raise ReleaseError(f"the image could not be built: {failure}{hint}") from failure
    say(f"built the image {name}")


def checksums(paths: Iterable[Path]) -> str:
    """Return the lines that `sha256sum --check` reads."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)


def run(*words: object, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> str:
    """Run a program of the release without the settings of this user, and return its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTHOUSE_", "PYTHONPATH"))}
    command = [str(word) for word in words]
    done = subprocess.run(
        command, cwd=cwd, env=kept | dict(environ or {}), capture_output=True, text=True, timeout=PATIENCE_S
    )
    if done.returncode:
        raise ReleaseError(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    try:
        main(ROOT / "dist")
    except ReleaseError as failure:
        sys.stderr.write(f"error: {failure}\n")
        sys.exit(1)
