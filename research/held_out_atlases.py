"""Atlases of nine of the ten heads that trained the shipped one, each for the head that it leaves out.

python research/held_out_atlases.py fit     # the shipped mesh, fitted to the label maps of its ten heads
python research/held_out_atlases.py save [NAME …]   # a complete model per head, in build/intervals/models
python research/held_out_atlases.py need NAME       # how much better the shipped atlas describes a head

The label probabilities of the nodes are estimated anew from the nodes of the other nine heads, from equal
probabilities on, by the EM of the training. Topology and reference positions of the mesh are those of the
shipped atlas, which all ten heads shaped, and so do the shipped probabilities with which heads are aligned;
a head that took no part in them would be described a little worse. `fit` continues where it was stopped.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Collection
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from atlas import ATLAS, figures, levels
from head_cases import LABELS, PROJECT, read_head

from tumoar.io.models import SHIPPED, load_model
from tumoar.io.store import atlas_section, load_atlas, load_sections, save_sections
from tumoar.model.atlas import Atlas
from tumoar.numerics.tetra_raster import rasterize
from tumoar.train.align import Alignment
from tumoar.train.atlas import estimate_probabilities, fit, to_atlas
from tumoar.train.atlas_state import AtlasSettings, AtlasState

HEADS = PROJECT / "build" / "intervals"
MODELS = HEADS / "models"
SETTINGS = AtlasSettings()
FITS = ((4.0, 20), (2.0, 20), (0.0, 30))
"""Standard deviation of the blur in mm, evaluations of the cost; about half of those in `atlas.py`."""
PASSES = 8
"""Of the EM, from equal probabilities."""


def trained_on(atlas: Atlas) -> list[str]:
    """Numbers of the heads that trained an atlas."""
    return [name.removeprefix("head_").removesuffix(".nii.gz") for name in atlas.provenance["heads"]]


def placed(name: str, atlas: Atlas) -> npt.NDArray[np.uint8]:
    """The label map of a head in the box of the atlas."""
    path = MODELS / f"placed_{name}.npy"
    if not path.exists():
        head = read_head(name, HEADS)[0]
        np.save(path, Alignment.of_card(atlas.provenance, atlas.labels).place(head, LABELS))
    return np.asarray(np.load(path))


def reference(atlas: Atlas) -> npt.NDArray[np.float64]:
    """Nodes in voxels of the box."""
    return atlas.nodes + (np.array(atlas.provenance["box"]) - 1) / 2


def fit_heads() -> None:
    """Fit the shipped mesh to its heads, coarse to fine."""
    atlas = load_atlas(ATLAS)
    steps = list(levels(atlas, FITS))
    for name in trained_on(atlas):
        path = MODELS / f"nodes_{name}.npy"
        if not path.exists():
            start = time.process_time()
            nodes, truth = None, placed(name, atlas)
            for alpha, evaluations in steps:
                nodes = fit(reference(atlas), atlas.tetrahedra, alpha, truth, SETTINGS, evaluations, nodes)
            np.save(path, nodes)
            print(path, round(time.process_time() - start), "CPU s", flush=True)


def save_models(wanted: Collection[str]) -> None:
    """Write the model of each of these heads, which the others describe; by default of all."""
    atlas = load_atlas(ATLAS)
    names = trained_on(atlas)
    nodes = np.stack([np.load(MODELS / f"nodes_{name}.npy") for name in names])
    maps = np.stack([placed(name, atlas) for name in names])
    for k, name in enumerate(names):
        path = model_of(name)
        if path.exists() or name not in (wanted or names):
            continue
        rest = [n for n in range(len(names)) if n != k]
        K = sum(s.trained for s in LABELS.structures)
        alpha, cost = estimate_probabilities(nodes[rest], atlas.tetrahedra, maps[rest], K, SETTINGS, PASSES)
        state = AtlasState(0, reference(atlas), atlas.tetrahedra, nodes[rest], alpha, cost)
        card = {**atlas.provenance, "heads": [f"head_{names[n]}.nii.gz" for n in rest]}
        sections = {"atlas": atlas_section(to_atlas(state, maps[rest], LABELS, SETTINGS, card))}
        for other in SHIPPED["default"][1:]:
            sections |= load_sections(ATLAS.parent / other)
        save_sections(path, sections)
        load_model([path])
        print(path, flush=True)


def need(name: str) -> None:
    """Fit both atlases to the label map of a head, and compare what they find most probable with it."""
    shipped, held_out = load_atlas(ATLAS), load_model([model_of(name)]).atlas
    for title, atlas in (("shipped", shipped), ("of the others", held_out)):
        nodes, truth = None, placed(name, shipped)
        for alpha, evaluations in levels(atlas, FITS):
            nodes = fit(reference(atlas), atlas.tetrahedra, alpha, truth, SETTINGS, evaluations, nodes)
        print(title, figures(rasterize(nodes, atlas.tetrahedra, alpha, truth.shape), truth), flush=True)


def model_of(name: str) -> Path:
    """File of the model that leaves out a head."""
    return MODELS / f"without_{name}.npz"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("fit", "save", "need"))
    parser.add_argument("names", nargs="*", help="numbers of heads")
    options = parser.parse_args()
    MODELS.mkdir(parents=True, exist_ok=True)
    if options.verb == "fit":
        fit_heads()
    elif options.verb == "save":
        save_models(options.names)
    else:
        for name in options.names:
            need(name)


if __name__ == "__main__":
    main()
