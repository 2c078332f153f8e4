"""Dependencies and bill of materials: complete, true to lock and installation, silent about this machine."""

import hashlib
import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import dependencies  # noqa: E402
import sbom  # noqa: E402

PACKAGES = {p.name: p for p in dependencies.read_packages()}
BOM = sbom.build_sbom()


def test_the_page_is_the_rendered_one():
    page = dependencies.PAGE.read_text("utf-8")
    assert page == dependencies.render(), "run `python tools/dependencies.py`"


def test_every_direct_dependency_is_marked():
    project = dependencies.tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["cluster"]]
    direct = {canonicalize_name(Requirement(line).name) for line in lines}
    assert {name for name, p in PACKAGES.items() if p.is_direct} == direct


def test_every_other_package_is_needed_by_one():
    needed = {name for p in PACKAGES.values() for name in p.needs}
    assert needed <= set(PACKAGES)
    assert {name for name, p in PACKAGES.items() if not p.is_direct} <= needed


@pytest.mark.parametrize("name", PACKAGES)
def test_needs_and_license_are_those_of_the_installed_package(name):
    try:
        meta = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        assert PACKAGES[name].only, "only what is for other systems may be absent"
        return
    lines = map(Requirement, importlib.metadata.requires(name) or [])
    needs = {canonicalize_name(r.name) for r in lines if r.marker is None or r.marker.evaluate({"extra": ""})}
    assert needs & set(PACKAGES) <= set(PACKAGES[name].needs)
    if meta["Version"] == PACKAGES[name].version and meta.get("License-Expression"):
        assert PACKAGES[name].license == meta["License-Expression"]


def test_a_package_that_is_not_described_is_refused(tmp_path):
    for name in ("pyproject.toml", "requirements.lock", "tools/dependencies.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    with open(tmp_path / "requirements.lock", "a", encoding="utf-8") as lock:
        lock.write("leftpad==1.0 \\\n    --hash=sha256:00\n")
    with pytest.raises(ValueError, match="leftpad"):
        dependencies.read_packages(tmp_path)


# ---- bill of materials -------------------------------------------------------------------------------------


def test_every_component_has_identity_version_and_license():
    assert BOM["bomFormat"] == "CycloneDX"
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", BOM["serialNumber"])
    names = [c["name"] for c in BOM["components"]]
    assert len(names) == len(set(names))
    assert set(PACKAGES) <= set(names)
    for component in BOM["components"]:
        assert component["licenses"]
        if component["type"] == "library":
            assert component["purl"].endswith(f"@{component['version']}")


def test_the_graph_reaches_every_component():
    graph = {row["ref"]: row["dependsOn"] for row in BOM["dependencies"]}
    places = {c["bom-ref"] for c in BOM["components"]}
    todo, seen = [BOM["metadata"]["component"]["bom-ref"]], set()
    while todo:
        here = todo.pop()
        if here not in seen:
            seen.add(here)
            todo += graph[here]
    assert seen - {BOM["metadata"]["component"]["bom-ref"]} == places


def test_models_and_viewer_have_the_digests_of_their_files():
    data = ROOT / "src" / "tumoar"
    found = {c["name"]: c["hashes"][0]["content"] for c in BOM["components"] if "hashes" in c}
    models = sorted(path.relative_to(data).as_posix() for path in data.glob("data/*.npz"))
    assert set(models) <= set(found)
    for name in models:
        assert found[name] == hashlib.sha256((data / name).read_bytes()).hexdigest()
    viewer = data / "data" / "vendor" / "niivue-0.69.0.umd.js.gz"
    assert found["@niivue/niivue"] == hashlib.sha256(viewer.read_bytes()).hexdigest()


def test_nothing_tells_of_host_path_or_time():
    text = sbom.render()
    assert "://" not in text
    assert not re.search(r'"/\w|timestamp|hostname', text)
    assert text == sbom.render()
    assert json.loads(text) == BOM
