"""What `make release` builds; tests/test_base_install.py installs the wheel and runs it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from posthouse.version import __version__
from scripts.release import (
    ROOT,
    UV,
    ReleaseError,
    bill_of_materials,
    build,
    check_reproducible,
    checksums,
    release_notes,
    run,
)

pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv is not installed: run scripts/setup")


def test_wheel_has_the_same_bytes_when_it_is_built_again_elsewhere(tmp_path: Path) -> None:
    wheel = build("wheel", tmp_path)
    check_reproducible(wheel)
    names = zipfile.ZipFile(wheel).namelist()
    assert "posthouse/py.typed" in names
    assert [name for name in names if not name.startswith(("posthouse/", "posthouse-"))] == []


def test_control_a_wheel_with_other_bytes_is_refused(tmp_path: Path) -> None:
    wheel = build("wheel", tmp_path)
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(ReleaseError, match="differs"):
        check_reproducible(wheel)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a repository knows which files are local")
def test_sdist_has_what_a_build_needs_and_no_local_files(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/posthouse/version.py"} <= names
    tracked = run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    assert names - {"", "PKG-INFO"} - set(tracked) == set()


def test_bill_of_materials_names_every_library_of_the_product_with_its_version() -> None:
    document = json.loads(bill_of_materials())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    named = {each["name"]: each["version"] for each in document["components"]}
    assert {"aiohttp", "apsw", "pynacl", "pyspark", "psycopg"} <= set(named)
    assert "pytest" not in named
    product = document["metadata"]["component"]
    assert (product["name"], product["version"]) == ("posthouse", __version__)
    assert all(each["purl"].startswith("pkg:pypi/") for each in document["components"])


def test_bill_of_materials_has_the_same_bytes_when_it_is_made_again() -> None:
    assert bill_of_materials() == bill_of_materials()


def test_notes_are_the_section_of_the_version_and_a_missing_one_is_refused() -> None:
    changelog = "# Changelog\n\n## 1.1 (2027-01-01)\n\n- new\n\n### A part\n\n- more\n\n## 1.0\n\n- old\n\n## 0.9\n"
    assert release_notes(changelog, "1.1") == "- new\n\n### A part\n\n- more\n"
    for version in ("2.0", "0.9"):
        with pytest.raises(ReleaseError, match=version):
            release_notes(changelog, version)
    assert release_notes((ROOT / "CHANGELOG.md").read_text(), __version__)


def test_checksums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    file = tmp_path / "posthouse.whl"
    file.write_bytes(b"wheel")
    assert checksums([file]) == f"{hashlib.sha256(b'wheel').hexdigest()}  posthouse.whl\n"
    (tmp_path / "SHA256SUMS").write_text(checksums([file]))
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
