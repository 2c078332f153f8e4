"""Specks of organs are not outlined; what is outlined stays whole, and nothing is left without a label."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import small_head
from small_result import small_result

from tumoar.geometry.image import Grid
from tumoar.inference.tally import Tally, Votes
from tumoar.io.nifti import read_nifti
from tumoar.model.joint import Labels
from tumoar.result.folder import Options, write_result
from tumoar.result.native import deliver
from tumoar.result.specks import SPECK, fill_specks, find_parts, find_specks
from tumoar.vocabulary.labels import add_cavity, default_labels

TABLE = default_labels()
SHAPE = (40, 30, 30)
GRAY, WHITE, AIR, FAT = (TABLE.l(n) for n in ("gray matter", "white matter", "background", "eye socket fat"))
LEFT, RIGHT, STEM = (TABLE.l(n) for n in ("left hippocampus", "right hippocampus", "brainstem"))
NO_TUMOR = np.zeros(SHAPE, np.uint8)


def anatomy():
    """Gray matter beside white matter, with a hippocampus; air above."""
    l = np.full(SHAPE, GRAY, np.uint8)
    l[20:] = WHITE
    l[:, :, 26:] = AIR
    l[4:14, 4:14, 4:14] = LEFT
    return l


def cleaned(l, z=NO_TUMOR, table=TABLE):
    votes = Votes(l, z, np.zeros(l.shape, np.uint8))
    return fill_specks(table, votes, find_specks(table, l, 0.001), np.ones(3)).l


def test_parts_that_touch_at_a_corner_are_one():
    mask = np.zeros((4, 4, 4), bool)
    mask[0, 0, 0] = mask[1, 1, 1] = True
    assert find_parts(mask, 0.001).largest == 1
    mask[3, 3, 3] = True
    parts = find_parts(mask, 0.001)
    assert parts.largest == pytest.approx(2 / 3)
    assert parts.large.tolist() == [False, True, False]


def test_specks_become_the_tissue_around_them():
    l = anatomy()
    clean = l.copy()
    l[16:19, 16, 16] = LEFT  # in gray matter
    l[30:33, 16:18, 16] = LEFT  # in white matter
    l[35, 15, 28] = LEFT  # in air
    assert np.array_equal(cleaned(l), clean)


def test_a_large_second_part_stays():
    l = anatomy()
    size = round(1000 * SPECK)
    l[25 : 25 + size // 3, 20:23, 10] = LEFT
    assert np.array_equal(cleaned(l), l)
    l[25, 20, 10] = WHITE  # now it is a speck
    assert (cleaned(l) == LEFT).sum() == 1000


def test_the_largest_part_stays_however_small_it_is():
    l = np.full(SHAPE, GRAY, np.uint8)
    l[4, 4, 4:8] = LEFT
    l[20, 20, 20] = LEFT
    assert np.argwhere(cleaned(l) == LEFT).tolist() == [[4, 4, k] for k in range(4, 8)]


def test_no_other_organ_gains_a_voxel():
    l = anatomy()
    l[18:30, 4:14, 4:14] = STEM
    l[22, 8, 8] = LEFT  # inside the brainstem
    found = cleaned(l)
    assert found[22, 8, 8] in (GRAY, WHITE)
    assert np.array_equal(found == STEM, l == STEM)


def test_tissues_of_the_brain_may_be_many_parts():
    l = anatomy()
    l[30, 20, 20] = GRAY
    l[2, 2, 2] = TABLE.l("CSF")
    l[2, 25, 20] = FAT
    assert np.array_equal(cleaned(l), l)


def test_wall_and_fluid_of_an_eye_are_one_organ():
    l = anatomy()
    wall, fluid = TABLE.l("left eye tissue"), TABLE.l("left eye fluid")
    l[25:35, 2:12, 4:14] = wall
    l[28:32, 5:9, 7:11] = fluid
    assert np.array_equal(cleaned(l), l)
    l[25, 20, 20] = fluid
    assert cleaned(l)[25, 20, 20] == WHITE


def test_under_tumor_a_speck_becomes_a_structure_of_the_brain_and_no_cavity():
    table = add_cavity(TABLE)
    l, z = anatomy(), NO_TUMOR.copy()
    l[30, 15, 27] = LEFT  # in air, as voted under tumor
    l[29, 15, 26] = table.cavity
    z[30, 15, 27] = z[29, 15, 26] = 1
    found = cleaned(l, z, table)
    assert found[30, 15, 27] == WHITE
    assert cleaned(l, table=table)[30, 15, 27] == AIR


@pytest.fixture(scope="module")
def specked():
    """A result with a hippocampus and a speck of it in every sample, and an input in thick slices."""
    result = small_result()
    l, z, y = small_head.truth()
    place, at = (slice(14, 20), slice(20, 26), slice(20, 26)), (23, 23, 32)
    assert (l[at], z[at]) == (result.table.l("white matter"), 0)
    l[place] = l[at] = result.table.l("left hippocampus")
    tally = Tally(result.table, np.ones(l.shape, np.uint8))
    for _ in range(6):
        tally.add(Labels(l, z, y))
    given = result.case.input("FLAIR")
    grid = Grid((small_head.SIZE, small_head.SIZE, small_head.SIZE // 2), np.diag([1.0, 1.0, 2.0, 1.0]))
    inputs = (result.case.input("T1c"), replace(given, grid=grid))
    return replace(result, tallies=(tally,), case=replace(result.case, inputs=inputs)), at


def test_outlines_volumes_and_files_of_a_result_agree(specked, tmp_path):
    result, at = specked
    whole = (result.tally.fraction(("left hippocampus",)) == 1).sum()
    assert result.mask("Hippocampus_L").sum() == whole - 1 == whole - result.left_out("Hippocampus_L")
    assert result.left_out("Brain") == 0
    assert result.volume("Hippocampus_L").outlined == pytest.approx((whole - 1) / 1000)
    assert result.volume("Hippocampus_L").mean == pytest.approx(whole / 1000), "samples stay as drawn"
    assert result.table.in_brain[result.votes.l[at]]
    out = tmp_path / "out"
    write_result(out, result, [], {"key": "k"}, Options(), lambda manifest: "", [])
    with open(out / "volumes.tsv", encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}
    row = rows["Hippocampus_L"]
    assert (int(row["removed_voxels"]), int(row["components"])) == (1, 1)
    assert float(row["outlined_cm3"]) == pytest.approx((whole - 1) / 1000)
    assert not read_nifti(out / "structures" / "Hippocampus_L.nii.gz").data[at]


def test_thick_slices_have_no_specks_either(specked):
    result, _ = specked
    l = deliver(result, "FLAIR").votes.l
    assert not find_specks(result.table, l, 0.002).any()
    assert (l == result.table.l("left hippocampus")).any()


def test_the_method_of_the_paper_keeps_every_voxel(specked):
    result, at = specked
    paper = replace(result, config=result.config.model_copy(update={"vote": "majority"}))
    for found in (paper.votes.l, deliver(paper, "T1c").votes.l):
        assert found[at] == result.table.l("left hippocampus")
