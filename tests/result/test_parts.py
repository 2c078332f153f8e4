"""Parts of the tumor that are outlined, and what the GTV is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_result import small_result

from tumoar.app.pipeline import _choose_targets
from tumoar.io.rois import look_of
from tumoar.result.checks import review
from tumoar.result.parts import describe_gtv, find_islands, gtv_is_whole, uses_whole_tumor, widen_gtv
from tumoar.vocabulary.contrasts import edema_is_visible, find_contrast
from tumoar.vocabulary.labels import default_labels

SHAPE = (40, 20, 20)


def parts() -> tuple[np.ndarray, np.ndarray]:
    """A tumor of 1 cm³ with core, one of 0.343 cm³ without, one of 0.343 cm³ with core, and a speck."""
    z = np.zeros(SHAPE, bool)
    z[0:10, 0:10, 0:10] = True
    z[14:21, 0:7, 0:7] = True
    z[24:31, 0:7, 0:7] = True
    z[36:38, 0:2, 0:2] = True
    y = np.zeros(SHAPE, bool)
    y[2:8, 2:8, 2:8] = True
    y[24:30, 1:6, 1:6] = True
    return z, y


def test_specks_and_small_parts_without_core_are_left_out():
    z, y = parts()
    dropped = find_islands(z, y, None, 0.001, 0.1, 0.5)
    assert dropped[36:38, 0:2, 0:2].all()
    assert dropped[14:21, 0:7, 0:7].all()
    assert dropped.sum() == 7**3 + 8
    assert not find_islands(z, y, None, 0.001, 0.1, 0.2)[14:21].any()


def test_a_part_that_looks_like_normal_tissue_is_left_out_but_never_the_largest():
    z, y = parts()
    excess = np.full(SHAPE, 0.2)
    excess[24:31] = -0.1  # most of it: a few bright voxels do not help
    excess[24:31, 0, 0] = 3.0
    dropped = find_islands(z, y, excess, 0.001, 0.1, 0.2)
    assert dropped[24:31, 0:7, 0:7].all()
    assert not dropped[:21].any()
    assert not find_islands(z, y, np.full(SHAPE, -1.0), 0.001, 0.1, 0.2)[:10].any()


def test_no_tumor_has_no_islands():
    empty = np.zeros(SHAPE, bool)
    assert not find_islands(empty, empty, np.zeros(SHAPE), 0.001, 0.1, 0.2).any()


@pytest.mark.parametrize(
    ("gtv", "core", "whole", "identifiable", "expected"),
    [
        ("auto", 20.0, 80.0, True, False),
        ("auto", 0.4, 80.0, True, True),  # less than a sphere 10 mm across
        ("auto", 0.0, 0.1, True, False),  # no tumor at all
        ("auto", 30.0, 80.0, False, True),  # no contrast shows enhancement
        ("enhancing", 0.0, 80.0, True, False),
        ("flair", 20.0, 80.0, True, True),
    ],
)
def test_when_the_gtv_is_the_whole_tumor(gtv, core, whole, identifiable, expected):
    assert uses_whole_tumor(gtv, core, whole, identifiable) is expected


def test_only_the_gtv_of_a_table_changes():
    table = default_labels()
    wide = widen_gtv(table)
    assert gtv_is_whole(wide)
    assert not gtv_is_whole(table)
    assert [o.name for o in wide.organs] == [o.name for o in table.organs]
    changed = [o.name for a, o in zip(table.organs, wide.organs) if a != o]
    assert changed == ["GTV"]
    assert describe_gtv(table.organ("GTV")) == "enhancing core"
    assert describe_gtv(wide.organ("GTV")) == "whole T2/FLAIR abnormality"
    assert describe_gtv(wide.organ("Brainstem")) == ""
    assert look_of(wide, wide.organ("GTV")) == look_of(table, table.organ("GTV"))  # still a neoplasm


def without_core():
    result = small_result()
    tally = result.tallies[0]
    tally.y[:] = 0
    tally.volumes = [np.append(v[:-2], [v[-2] + v[-1], 0]) for v in tally.volumes]
    return replace(result, tallies=(tally,))


def test_where_nothing_enhances_every_output_has_the_whole_tumor_and_a_note():
    result = _choose_targets(without_core())
    assert gtv_is_whole(result.table)
    np.testing.assert_array_equal(result.mask("GTV"), result.votes.z == 1)
    assert result.volume("GTV").mean == pytest.approx(result.volume("Edema").mean)
    np.testing.assert_array_equal(result.probability("GTV"), result.probability("Edema"))
    note = next(n for n in review(result) if n.id == "T51")
    assert (note.where, note.level) == ("GTV", "review")
    assert "whole T2/FLAIR abnormality: no enhancing core was found" in note.text


def test_an_empty_gtv_is_only_had_by_asking_and_is_noted():
    result = without_core()
    result = _choose_targets(replace(result, config=result.config.model_copy(update={"gtv": "enhancing"})))
    assert not result.mask("GTV").any()
    assert "the GTV is empty" in next(n.text for n in review(result) if n.id == "T51")


def test_an_enhancing_tumor_keeps_its_core_unless_asked():
    result = small_result()
    result = replace(result, tallies=result.tallies)
    core = result.votes.y.sum() / 1000
    kept = _choose_targets(result)
    assert gtv_is_whole(kept.table) == (core < 0.5)
    asked = _choose_targets(replace(result, config=result.config.model_copy(update={"gtv": "flair"})))
    assert gtv_is_whole(asked.table)
    assert "as asked for" in next(n.text for n in review(asked) if n.id == "T51")


@pytest.mark.parametrize(
    ("names", "visible"),
    [
        (("T1c",), False),
        (("T1c", "T1"), False),
        (("T1c", "CT"), False),
        (("T2",), True),
        (("T1c", "FLAIR"), True),
        (("DIR",), True),
    ],
)
def test_edema_shows_in_flair_and_t2(names, visible):
    assert edema_is_visible([find_contrast(name) for name in names]) == visible


def test_edema_that_no_image_shows_is_noted_and_its_parts_need_core():
    result = small_result()
    t1c = [c.name for c in result.case.contrasts].index("T1c")
    seen = {n.id for n in review(result)}
    hidden = replace(result, case=result.case.select_channels((t1c,)))
    note = next(n for n in review(hidden) if n.id == "T52")
    assert (note.where, note.level) == ("Edema", "review")
    assert "T52" not in seen
    assert not (result.islands & ~hidden.islands).any()
