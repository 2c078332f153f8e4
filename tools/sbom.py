"""Bill of materials of a wheel: CycloneDX JSON of dependencies, bundled software and model files.

It contains no time, no host and no path, so that equal sources give equal bytes.
Only the standard library is used: the build of a wheel imports this module.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

from dependencies import ROOT, Bundled, Package, read_bundled, read_packages, read_version

NAME = "tumoar.cdx.json"
SPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # of URLs, RFC 9562


def build_sbom(root: Path = ROOT) -> dict[str, Any]:
    """The bill of materials of the sources in a folder."""
    package = root / "src" / "tumoar"
    version = read_version(root)
    own = _purl("pypi", "tumoar", version)
    packages, bundled = read_packages(root), read_bundled(root)
    places = {p.name: _purl("pypi", p.name, p.version) for p in packages}
    models = [_model(path, package) for path in sorted(package.glob("data/*.npz"))]
    components = [
        *(_library(p, places[p.name]) for p in packages),
        *(_bundle(b, package) for b in bundled),
        *models,
    ]
    inside = [c["bom-ref"] for c in components if c["type"] != "library" or c["purl"].startswith("pkg:npm")]
    graph = [{"ref": own, "dependsOn": sorted([places[p.name] for p in packages if p.is_direct] + inside)}]
    graph += [{"ref": places[p.name], "dependsOn": [places[n] for n in p.needs]} for p in packages]
    graph += [{"ref": ref, "dependsOn": []} for ref in inside]
    whole = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "tumoar",
                "version": version,
                "description": "For research only; not a medical device.",
                "licenses": [{"expression": "Apache-2.0"}],
                "purl": own,
            }
        },
        "components": components,
        "dependencies": graph,
    }
    serial = uuid.uuid5(SPACE, json.dumps(whole, sort_keys=True))
    return {
        "bomFormat": whole["bomFormat"],
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
    } | whole


def render(root: Path = ROOT) -> str:
    """The bill of materials as text."""
    return json.dumps(build_sbom(root), indent=1) + "\n"


def _purl(kind: str, name: str, version: str) -> str:
    return f"pkg:{kind}/{name.replace('@', '%40')}@{version}"


def _library(package: Package, purl: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "description": package.role,
        "scope": "optional" if package.extra or package.only else "required",
        "licenses": _licenses(package.license),
        "purl": purl,
    }
    return row


def _bundle(bundled: Bundled, package: Path) -> dict[str, Any]:
    purl = _purl("npm", bundled.name, bundled.version)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": bundled.name,
        "version": bundled.version,
        "description": bundled.role,
        "hashes": _hashes(package / bundled.file),
        "licenses": _licenses(bundled.license),
        "purl": purl,
    }


def _model(path: Path, package: Path) -> dict[str, Any]:
    name = path.relative_to(package).as_posix()
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{path.name}",
        "name": name,
        "hashes": _hashes(path),
        "licenses": _licenses("Apache-2.0"),
    }


def _licenses(text: str) -> list[dict[str, Any]]:
    """A license of SPDX, an expression of several, or a name outside SPDX."""
    if text.startswith("LicenseRef-"):
        return [{"license": {"name": text.removeprefix("LicenseRef-")}}]
    return [{"expression": text}] if " " in text else [{"license": {"id": text}}]


def _hashes(path: Path) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]
