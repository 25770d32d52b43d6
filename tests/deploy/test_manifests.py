"""The files of deploy/ against the product and against the schemas of the programs that read them."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from posthouse.cli.service_units import ServiceDefinition, systemd_unit
from posthouse.model.settings import SETTINGS
from posthouse.version import __version__
from tests.docs.pages import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KUBERNETES = "1.34"
VARIABLES = {setting.environment for setting in SETTINGS.values()} | {"POSTHOUSE_HOME"}


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def directives(unit: str) -> dict[str, str]:
    lines = [line for line in unit.splitlines() if "=" in line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_of_the_machine_are_as_strict_as_those_of_a_user(path: Path) -> None:
    unit = directives(path.read_text())
    is_relay = "relay" in path.name
    own = directives(systemd_unit(ServiceDefinition("x", "x", ("x",), (), {}, notifies=is_relay)))
    differs = {"Description", "ExecStart", "WantedBy", "ReadWritePaths", "ProtectHome"}
    assert {name: unit.get(name) for name in own if name not in differs} == {
        name: value for name, value in own.items() if name not in differs
    }
    assert unit["ProtectHome"] in ("yes", "read-only")


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for path in UNITS:  # a program that exists takes the place of the one that is to be installed
        name = path.name.replace("@", "@user")
        text = path.read_text().replace("/opt/posthouse/bin/posthouse", "/bin/true")
        (tmp_path / name).write_text(re.sub("^Documentation=.*$", "", text, flags=re.M))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", tmp_path / name], capture_output=True, text=True, timeout=60
        )
        assert [line for line in done.stderr.splitlines() if name in line] == []


def test_compose_file_names_settings_files_volumes_and_services_that_exist() -> None:
    [compose] = documents(DEPLOY / "compose.yaml")
    assert {"relay", "database", "prometheus", "grafana"} <= set(compose["services"])
    example = (DEPLOY / "compose.env.example").read_text()
    for name, service in compose["services"].items():
        given = service.get("environment", {})
        assert [each for each in given if each.startswith("POSTHOUSE_") and each not in VARIABLES] == [], name
        for wanted in re.findall(r"\$\{(\w+)", str(service)):
            assert f"\n{wanted}=" in example, wanted
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"], volume
        assert set(service.get("depends_on", [])) <= set(compose["services"])
    built = compose["services"]["relay"]
    assert (DEPLOY / built["build"]["context"] / built["build"]["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    assert built["image"] == f"posthouse:{__version__}"


def test_kubernetes_manifests_fit_the_schemas() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library that has the schemas
        import kubernetes_validate

        found = documents(DEPLOY / "kubernetes" / "relay.yaml")
        for document in found:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        found[0]["datum"] = {}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(found[0], KUBERNETES, strict=True)


def test_kubernetes_manifests_name_settings_and_objects_that_exist() -> None:
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents(DEPLOY / "kubernetes" / "relay.yaml")}
    [relays] = [each["spec"] for (kind, _), each in found.items() if kind == "StatefulSet"]
    pod = relays["template"]["spec"]
    given = {each["name"] for each in pod["containers"][0]["env"]} | set(found["ConfigMap", "posthouse-relay"]["data"])
    assert [name for name in given if name.startswith("POSTHOUSE_") and name not in VARIABLES] == []
    assert ("Service", relays["serviceName"]) in found
    hosts = found["ConfigMap", "posthouse-relay"]["data"]["POSTHOUSE_RELAY_HOSTS"].split(",")
    assert hosts[1:] == [f"posthouse-relay-{number}.posthouse-relay:7420" for number in range(relays["replicas"])]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["image"].endswith(f":{__version__}")
        assert {each["name"] for each in container["volumeMounts"]} <= {each["name"] for each in pod["volumes"]}
