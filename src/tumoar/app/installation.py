"""Installation and repeatability, for `tumoar commission`: files, models, the same bits twice."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from tumoar.app.acceptance import Finding
from tumoar.app.machine import limited_threads
from tumoar.app.pipeline import Arrays, segment
from tumoar.io.models import SHIPPED, default_model, require_working, shipped_model
from tumoar.io.store import load_hashed
from tumoar.model.atlas import Atlas
from tumoar.model.generative import Model
from tumoar.numerics.threads import MOST
from tumoar.result.scores import dice
from tumoar.result.segmentation import Segmentation
from tumoar.simulate.ball_head import LABELS, SIZE, TUMOR_MM3, case, probabilities, truth
from tumoar.train.mesh import build_uniform_mesh
from tumoar.version import __version__
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig, Level

INSTALLATION, HEAD = "Installation", "Segmentation of a phantom head"
CONFIG = Config(
    gtv="enhancing",  # the core of the phantom head is smaller than a measurable one
    gem=GemConfig(levels=(Level(spacing=1, smoothing=0),), outer_iterations=2, em_iterations=12),
    gibbs=GibbsConfig(burn_in=14, samples=10),
)
PLACED: Arrays = {"matrix": np.eye(4), "figures": np.array([0.5]), "names": np.array(["gain"])}
"""The phantom head lies where its atlas lies: no search."""


class _Known:
    """Checkpoint store that knows the placement and keeps nothing."""

    def load(self, name: str) -> Arrays | None:
        """Load the placement."""
        return dict(PLACED) if name == "place" else None

    def save(self, name: str, arrays: Arrays) -> None:
        """Discard the arrays."""


# ---- files -------------------------------------------------------------------------------------------------


def check_installation() -> Iterator[Finding]:
    """Files of the package against the digests of its wheel; every model file works."""
    changed, known = changed_files()
    yield Finding(INSTALLATION, "package", "is installed from a wheel", "", float(known == 0), "exact")
    if known:
        where = f"{known} files of the wheel"
        yield Finding(INSTALLATION, "package", "files unlike the wheel", where, float(changed), "exact")
    for name in dict.fromkeys(name for names in SHIPPED.values() for name in names):
        with as_file(files("tumoar").joinpath("data", name)) as path:
            sections, digest = load_hashed(path)  # checks the digest inside the file
            require_working(sections, path)
            expected = recorded_digest(f"tumoar/data/{name}")
            differs = expected is not None and expected != digest
            where = f"SHA-256 {digest[:16]}…, {'as in the wheel, ' if expected else ''}trial fit"
            yield Finding(INSTALLATION, name, "model file", where, float(differs), "exact")


def changed_files() -> tuple[int, int]:
    """How many files of the package differ from the record of its wheel, and how many it lists."""
    found = _wheel()
    if found is None:
        return 0, 0
    listed = [f for f in found.files or [] if f.hash is not None and f.parts[0] == "tumoar"]
    digests = [(Path(str(found.locate_file(f))), f.hash.value) for f in listed if f.hash is not None]
    changed = sum(not path.is_file() or _record(path.read_bytes()) != value for path, value in digests)
    return changed, len(digests)


def recorded_digest(name: str) -> str | None:
    """SHA-256 of a file in the record of the wheel; None if not installed from one."""
    found = _wheel()
    for f in (found.files or []) if found is not None else []:
        if f.as_posix() == name and f.hash is not None:
            return base64.urlsafe_b64decode(f.hash.value + "=").hex()
    return None


def _wheel() -> Distribution | None:
    """The installed package, if it is the one that runs."""
    try:
        found = distribution("tumoar")
    except PackageNotFoundError:
        return None
    here = Path(str(files("tumoar"))).resolve()
    there = Path(str(found.locate_file("tumoar"))).resolve()
    return found if here == there else None


def _record(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def describe_machine() -> dict[str, str]:
    """Versions and machine, without names of hosts and users."""
    names = ("numpy", "scipy", "numba", "pydicom", "highdicom", "SimpleITK", "nibabel")
    return {
        "tumoar": __version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "packages": ", ".join(f"{name} {distribution(name).version}" for name in names),
    }


def model_digests() -> dict[str, str]:
    """SHA-256 of every model file in the package."""
    return {file: digest for name in SHIPPED for file, digest in shipped_model(name).sha256.items()}


# ---- a head ------------------------------------------------------------------------------------------------


def phantom_model() -> Model:
    """An atlas of the phantom head with the tumor shape priors of the package."""
    nodes, tetrahedra = build_uniform_mesh((SIZE,) * 3, 4.0, np.random.default_rng(0))
    atlas = Atlas(nodes, tetrahedra, probabilities(nodes), LABELS)
    shipped = default_model()
    return Model(atlas, shipped.shape_z, shipped.shape_y, TUMOR_MM3, shipped.sha256)


def check_head() -> Iterator[Finding]:
    """Segment the phantom head with one thread and with all; compare bits, and tumor with its truth."""
    model, scan = phantom_model(), case()
    results = []
    for threads in (1, MOST):
        with limited_threads(threads):
            results.append(segment(scan, model, CONFIG, seed=3, keeper=_Known()))
    first, second = (digest_bits(result) for result in results)
    where = f"1 and {MOST} threads, the same seed"
    yield Finding(HEAD, "all", "bits that differ between two runs", where, float(first != second), "exact")
    _, z, y = truth()
    for name, found, true in (("whole tumor", results[0].votes.z, z), ("GTV", results[0].votes.y, y)):
        cm3, expected = (float(v.sum()) / 1000 for v in (found, true))
        score = dice(found == 1, true == 1)
        yield Finding(HEAD, name, "Dice against the truth", "", score, "head", cm3, expected, "cm³")


def digest_bits(result: Segmentation) -> str:
    """SHA-256 of labels, probabilities and parameters."""
    theta = result.theta
    arrays = [result.labels, result.entropy(), theta.gamma, theta.mu, theta.Sigma, theta.C]
    arrays += [result.probability(organ.name) for organ in result.table.organs]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
