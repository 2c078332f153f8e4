"""Outline and samples of a result, measured alike."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import small_head
from small_result import small_result

from tumoar.api import Segmentation
from tumoar.geometry.image import Grid, Image
from tumoar.geometry.pieces import cut_mask
from tumoar.inference.tally import Tally
from tumoar.io.nifti import read_nifti
from tumoar.model.joint import Labels
from tumoar.radiotherapy.dvh import dvh
from tumoar.radiotherapy.limits import Limit, judge, measure
from tumoar.radiotherapy.structures import measure_doses
from tumoar.result.folder import Options, write_result
from tumoar.result.native import deliver, deliver_sample

N = small_head.SIZE
TABLE = small_head.LABELS
CHIASM = np.array([24.0, 40.0, 22.0])  # at the rim of the head
METRICS = ("D0.03cc", "D5", "D50", "mean", "max", "V54")


def labels_of_a_sample(shift=0.0, radius=4.0, specks=()):
    """The small head with a chiasm of 0.27 cm³, moved along z."""
    l, z, y = small_head.truth()
    points = np.stack(np.indices(l.shape), -1)
    ball = np.linalg.norm(points - CHIASM - [0, 0, shift], axis=-1) < radius
    l, z, y = l.copy(), z.copy(), y.copy()
    l[ball] = TABLE.l("optic chiasm")
    z[ball] = y[ball] = 0
    for at in specks:
        z[at] = y[at] = 1
    return Labels(l, z, y)


def result_of(samples, spacing) -> Segmentation:
    """A result with these samples whose T1c has voxels of another size."""
    found = small_result()
    tally = Tally(TABLE, np.ones((N, N, N), np.uint8), keep_samples=True)
    for sample in samples:
        tally.add(sample)
    shape = tuple(int(np.ceil(N / s)) for s in spacing)
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = (np.array(spacing) - 1) / 2
    t1c, flair = found.case.inputs
    given = replace(t1c, grid=Grid(shape, affine))
    found = replace(found, tallies=(tally,), case=replace(found.case, inputs=(given, flair)))
    return Segmentation(**{f.name: getattr(found, f.name) for f in fields(found)})


def written(folder, result, **options):
    manifest = {"inputs": [], "reference": "T1c", "patient": {}, "key": "k"}
    options = Options(samples=True, **options)
    write_result(folder, result, [], manifest, options, lambda whole: "page", ["line"])
    return folder


def steep(axis=2, gradient=3.0):
    """54 Gy in the middle of the chiasm, rising along an axis."""
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    affine[:3, 3] = -8
    grid = Grid((33, 33, 33), affine)
    along = grid.world(np.stack(np.indices(grid.shape), -1))[..., axis]
    return Image(np.clip(54 + gradient * (along - CHIASM[axis]), 0, 90).astype(np.float32), grid)


def of(found, name):
    return next(item.found for item in found.structures if item.name == name)


@pytest.mark.parametrize("spacing", [(1, 1, 1), (1, 1, 5), (0.7, 0.7, 3)], ids=str)
def test_samples_like_the_outline_have_its_doses_on_any_grid(tmp_path, spacing):
    result = result_of([labels_of_a_sample()] * 2, spacing)
    found = measure_doses(written(tmp_path / "out", result), steep())
    for name in ("OpticChiasm", "GTV", "Edema", "Brain"):
        one = of(found, name)
        assert one.dvh.volume > 0
        assert len(one.samples) == 2
        for sample in one.samples:
            # Where two structures share a voxel equally, rounding decides.
            assert sample.volume == pytest.approx(one.dvh.volume, rel=5e-4)
            for metric in METRICS:
                assert measure(sample, metric) == pytest.approx(measure(one.dvh, metric), abs=0.05)


def test_thick_slices_give_no_green_that_the_samples_contradict(tmp_path):
    """On the 1 mm voxels of the model the same samples lie on the other side of the limit."""
    result = result_of([labels_of_a_sample(shift) for shift in (-1.0, 0.0, 0.0, 1.0)], (1, 1, 5))
    one = of(measure_doses(written(tmp_path / "out", result), steep()), "OpticChiasm")
    values = [measure(sample, "D0.03cc") for sample in one.samples]
    for limit in np.linspace(min(values) - 3, max(values) + 3, 25):
        verdict = judge(Limit("OpticChiasm", "D0.03cc", limit, limit + 2), one.dvh, one.samples)
        if verdict.light == "green":
            assert verdict.value <= limit
            assert verdict.above <= 0.05
    fine = Image(
        (deliver(result, "FLAIR").votes.l == TABLE.l("optic chiasm")).astype(np.uint8), result.case.grid
    )
    assert abs(measure(dvh(cut_mask(fine), steep()), "D0.03cc") - measure(one.dvh, "D0.03cc")) > 0.5


def test_a_sample_stays_as_it_is_on_its_own_voxels():
    sample = labels_of_a_sample(0.7)
    result = result_of([sample], (1, 1, 1))
    (votes,) = result.tally.iter_samples()
    found = deliver_sample(TABLE, votes, result.case.grid, result.case.grid)
    assert np.array_equal(found.l, np.where(sample.z == 1, sample.l, sample.l))
    assert np.array_equal(found.z, sample.z)
    assert np.array_equal(found.y, sample.y)


def test_samples_leave_out_the_islands_of_tumor_that_the_outline_leaves_out(tmp_path):
    speck = (slice(12, 15), slice(20, 23), slice(20, 23))
    samples = [labels_of_a_sample(specks=[speck])] * 3
    for number, spacing in enumerate([(1, 1, 1), (1, 1, 3)]):
        result = result_of(samples, spacing)
        assert result.islands.any()
        one = of(measure_doses(written(tmp_path / str(number), result), steep()), "GTV")
        assert one.samples[0].volume == pytest.approx(one.dvh.volume)
    one = result.dvh("GTV", steep())
    assert one.samples[0].volume == pytest.approx(one.dvh.volume)
    assert one.dvh.volume == pytest.approx(result.mask("GTV").sum() / 1000)


def test_samples_are_those_of_the_manifest(tmp_path):
    """A file that nobody listed is no sample."""
    out = written(tmp_path / "out", result_of([labels_of_a_sample()] * 2, (1, 1, 1)))
    for end in (".nii.gz", "_anatomy.nii.gz"):
        (out / "samples" / f"sample_999{end}").write_bytes(
            (out / "samples" / f"sample_001{end}").read_bytes()
        )
    assert len(of(measure_doses(out, steep()), "GTV").samples) == 2


def test_only_structures_of_the_result_are_measured(tmp_path):
    out = written(tmp_path / "out", result_of([labels_of_a_sample()] * 2, (1, 1, 2)), organs=("OpticChiasm",))
    (one,) = measure_doses(out, steep()).structures
    assert (one.name, len(one.found.samples)) == ("OpticChiasm", 2)
    mask = read_nifti(out / "structures" / "OpticChiasm.nii.gz")
    assert one.found.dvh.volume == pytest.approx(mask.data.sum() * mask.grid.voxel_volume / 1000)
