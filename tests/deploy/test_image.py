"""The image of deploy/Containerfile, built without a registry and run as its page says: not root, read-only root.

Root is not needed: an ordinary user builds and runs it in a user namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from posthouse.keys import NodeKey
from posthouse.version import __version__
from scripts.image import ImageBuilder
from scripts.release import build, commit_time, image_requirements
from tests.relay.cluster.relays import free_port

BOUND_S = 120
IS_ROOT = os.geteuid() == 0
PROGRAMS = ("buildah", "mmdebstrap", "unshare", *(() if IS_ROOT else ("newuidmap",)))
PACKAGES = {"newuidmap": "uidmap", "unshare": "util-linux"}
MISSING = [PACKAGES.get(name, name) for name in PROGRAMS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.skipif(
        "POSTHOUSE_TEST_IMAGE" not in os.environ, reason="the image is built and run by `make image`: it takes minutes"
    ),
    pytest.mark.skipif(bool(MISSING), reason=f"the image was not built: install {' and '.join(MISSING)}"),
    pytest.mark.timeout(3_600),  # it makes a Debian and installs into it
]
#: Runs a program with mounts of its own; for an ordinary user as root of a user namespace, with the ids of /etc/subuid.
NAMESPACES = ("unshare", *(() if IS_ROOT else ("--user", "--map-auto", "--map-root-user")), "--mount")
#: What an engine does for `run --read-only --tmpfs /tmp --volume V:/var/lib/posthouse`: $1 is the root, $2 V, $3 the
#: user.
CONTAINER = """\
PATH=$PATH:/usr/sbin:/sbin
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount -t tmpfs tmpfs "$1/tmp"
mount --rbind /dev "$1/dev"
mount --rbind /proc "$1/proc"
mount --bind "$2" "$1/var/lib/posthouse"
user=$3
root=$1
shift 3
exec chroot --userspec="$user" "$root" "$@"
"""


@dataclass
class Image:
    """A built image: its root file system and its configuration."""

    root: Path
    volume: Path
    config: dict[str, Any]

    def command(self, words: Sequence[str], **environ: str) -> list[str]:
        """Return the command line that runs words in a container, in mounts of its own."""
        given = [*self.config["Env"], *(f"{name}={value}" for name, value in environ.items())]
        mounted = [*NAMESPACES, "sh", "-euc", CONTAINER, "sh", self.root, self.volume, self.config["User"]]
        return [str(word) for word in (*mounted, "/usr/bin/env", "-i", *given, *words)]

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(words, **environ), capture_output=True, text=True, timeout=BOUND_S)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image, with everything that its builder keeps in a folder of this test."""
    folder = tmp_path_factory.mktemp("image")
    context, volume = folder / "context", folder / "volume"
    context.mkdir()
    volume.mkdir()
    build("wheel", context)
    (context / "requirements.txt").write_text(image_requirements())
    options = ("--root", str(folder / "storage"), "--runroot", str(folder / "run"), "--storage-driver", "vfs")
    builder = ImageBuilder("buildah", options)
    builder.build(context, "posthouse-test", "debian", commit_time())
    container = builder.run("from", "posthouse-test")
    root = Path(as_root("buildah", *options, "mount", container))
    config = json.loads(builder.run("inspect", "--type", "image", "posthouse-test"))["Docker"]["config"]
    # as an engine does with a new volume
    as_root("sh", "-euc", 'chown --reference="$1" "$2"; chmod 700 "$2"', "sh", root / "var/lib/posthouse", volume)
    yield Image(root, volume, config)
    builder.run("umount", container)
    builder.run("rm", container)
    as_root("rm", "-rf", folder)


def as_root(*words: object) -> str:
    """Run a program as the root that owns the files of the image, and return its output."""
    command = [*NAMESPACES, *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=BOUND_S).stdout.strip()


def test_image_runs_a_relay_as_an_ordinary_user_on_a_read_only_root_until_it_is_stopped(image: Image) -> None:
    assert image.config["User"] == "65532:65532"
    assert image.run("posthouse", "version").stdout.startswith(f"posthouse {__version__} ")
    settings = {
        "POSTHOUSE_RELAY_LISTEN": f"127.0.0.1:{free_port()}",
        "POSTHOUSE_RELAY_BEHIND_PROXY": "true",
        "POSTHOUSE_RELAY_HOSTS": "relay.example",
        "POSTHOUSE_RELAY_ADMIN": NodeKey.generate().node,
    }
    kind, *check = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    assert image.run(*check, **settings).returncode != 0, "nothing runs yet"
    words = (*image.config["Entrypoint"], *image.config["Cmd"])
    relay = subprocess.Popen(image.command(words, **settings), stderr=subprocess.PIPE, text=True)
    try:
        wait_until_healthy(image, relay, check, settings)
        relay.send_signal(signal.Signals[image.config.get("StopSignal", "SIGTERM")])
        _, said = relay.communicate(timeout=BOUND_S)
        assert relay.returncode == 0, said
    finally:
        relay.kill()
        relay.wait(BOUND_S)
    refused = image.run("sh", "-c", "touch /opt/posthouse/x /etc/x; id -u")
    assert (refused.stdout, refused.stderr.count("Read-only file system")) == ("65532\n", 2)


def wait_until_healthy(
    image: Image, relay: subprocess.Popen[str], check: Sequence[str], settings: dict[str, str]
) -> None:
    until = time.monotonic() + BOUND_S
    while (found := image.run(*check, **settings)).returncode != 0:
        assert relay.poll() is None, relay.communicate()[1]
        assert time.monotonic() < until, found.stdout + found.stderr
