"""Images under names that are not theirs are noticed before anything is fitted, and right names never."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import small_head
from small_run import CONFIG, MODEL, run

from tumoar.app import pipeline
from tumoar.geometry.image import Case, Input
from tumoar.inference.gem import place_atlas
from tumoar.io.images import read_scans
from tumoar.io.models import default_model
from tumoar.placement.affine import AffineResult, place_affine
from tumoar.placement.tissue_order import CLEAR, check_order, contradictions, explained_by, tissue_ratios
from tumoar.preprocess.case import build_case
from tumoar.result.checks import review
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.errors import ChannelError
from tumoar.vocabulary.notes import Note

NAMES = ("T1", "T1c", "T2", "FLAIR")
# log intensities of white matter, gray matter, fluid and tumor
MEANS = {
    "T1": (6.0, 5.75, 5.0, 5.6),
    "T1c": (6.1, 5.8, 5.1, 6.9),
    "T2": (5.0, 5.3, 6.2, 5.9),
    "FLAIR": (5.4, 5.6, 4.6, 6.4),
    "DIR": (4.6, 5.6, 4.2, 6.2),
    "other": (5.0, 5.3, 6.2, 5.9),
    "CT": (0.3, 0.38, 0.1, 0.3),
}
TISSUES = ("white matter", "gray matter", "CSF")


def head(*names, shown=None, tumor=True, bias=0.0, seed=0) -> Case:
    """The small head, given under `names`, showing the contrasts `shown`."""
    rng = np.random.default_rng(seed)
    l, z, _ = small_head.truth()
    D = np.ones((len(names), *l.shape), np.float32)
    for channel, contrast in zip(D, shown or names):
        for tissue, value in zip(TISSUES, MEANS[contrast]):
            channel[l == small_head.LABELS.l(tissue)] = value
        if tumor:
            channel[z == 1] = MEANS[contrast][3]
        channel += small_head.SD * rng.standard_normal(l.shape)
        channel += bias * np.cos(np.pi * (np.arange(len(l)) + 0.5) / len(l))[:, None, None]
    case = small_head.case()
    inputs = tuple(Input(n, n, case.grid, "RAS", np.eye(4)) for n in names)
    contrasts = tuple(map(find_contrast, names))
    return replace(case, D=D, contrasts=contrasts, inputs=inputs, reference=names[0])


def looked_at(case, **options):
    return check_order(case, place_atlas(case, MODEL.atlas, np.eye(4), CONFIG.gem), **options)


def swapped(names, a, b):
    return [{a: b, b: a}.get(name, name) for name in names]


@pytest.mark.parametrize("bias", [pytest.param(0.0, marks=pytest.mark.slow), 0.4])
def test_right_names_pass_without_a_word_with_a_tumor_and_a_bias_field(bias):
    assert looked_at(head(*NAMES, "DIR", bias=bias)) == ()
    for pair in combinations(NAMES, 2):
        assert looked_at(head(*pair, bias=bias)) == ()
    for name in NAMES:
        assert looked_at(head(name, bias=bias)) == ()


@pytest.mark.parametrize("given", ["all", pytest.param("two", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("a", "b"), list(combinations(NAMES, 2)))
def test_every_swap_that_can_be_seen_is_refused_and_named(a, b, given):
    names = NAMES if given == "all" else (a, b)
    case = head(*names, shown=swapped(names, a, b), bias=0.3)
    if (a, b) == ("T1", "T1c"):
        assert looked_at(case) == ()  # the order of tissues is the same in both
        return
    with pytest.raises(ChannelError, match=rf"^E5-swapped .*; were {a} and {b} swapped\? \| found: by "):
        looked_at(case)


def test_the_sentence_is_in_plain_words():
    with pytest.raises(ChannelError) as stop:
        looked_at(head("T1c", "FLAIR", shown=("FLAIR", "T1c")))
    what = "gray matter is brighter than white matter in the image given as T1c; were T1c and FLAIR swapped?"
    assert stop.value.what == what
    assert "--trust-contrasts" in stop.value.do


def test_a_swap_shows_by_comparison_where_each_image_alone_would_pass(monkeypatch):
    """Gray matter hardly brighter than white in the FLAIR, as in brains with much edema."""
    monkeypatch.setitem(MEANS, "FLAIR", (5.58, 5.6, 4.6, 6.4))
    assert looked_at(head("T1c", "FLAIR")) == ()
    assert looked_at(head("T1c", shown=("FLAIR",))) == ()
    with pytest.raises(ChannelError, match=r"were T1c and FLAIR swapped\?"):
        looked_at(head("T1c", "FLAIR", shown=("FLAIR", "T1c")))


def test_names_in_a_circle_are_refused_without_a_guess():
    case = head("T1c", "T2", "FLAIR", shown=("T2", "FLAIR", "T1c"))
    with pytest.raises(ChannelError, match=r"is each image what its name says\?"):
        looked_at(case)


def test_white_matter_disease_in_a_flair_is_noted_and_never_refused(monkeypatch):
    monkeypatch.setitem(MEANS, "FLAIR", (5.9, 5.6, 4.6, 6.4))
    (note,) = looked_at(head("FLAIR"))
    assert str(note).startswith("swapped white matter is brighter than gray matter in the image given as")


@pytest.mark.parametrize("name", ["other", "CT"])
def test_a_contrast_without_an_order_is_not_judged(name):
    assert looked_at(head(name, shown=("T2",))) == ()
    assert looked_at(head("T1c", name, shown=("T1c", "FLAIR"))) == ()


def test_voxels_without_values_and_excluded_ones_do_not_count():
    case = head("T1c", "FLAIR")
    D = case.D.copy()
    D[:, 24:] = np.nan
    assert looked_at(replace(case, D=D)) == ()
    assert looked_at(replace(case, D=np.full_like(D, np.nan))) == ()
    wrong = head("T1c", "FLAIR", shown=("FLAIR", "T1c"))
    assert looked_at(replace(wrong, excluded=np.ones(D.shape[1:], bool))) == ()


def test_nothing_is_fitted_under_wrong_names(monkeypatch):
    def never(*_):
        raise AssertionError("fitted")

    monkeypatch.setattr(pipeline.gem, "iter_fit", never)
    with pytest.raises(ChannelError, match="E5-swapped"):
        run(head("T1c", "FLAIR", shown=("FLAIR", "T1c")))
    with pytest.raises(AssertionError, match="fitted"):
        run(head("T1c", "FLAIR"))


def test_trusted_names_are_noted_at_once_and_above_all_other_notes():
    seen = []
    case = replace(head("T1c", "FLAIR", shown=("FLAIR", "T1c")), notes=(Note("B20", "thick slices: 7 mm"),))
    result = run(case, watch=seen.append, trust_contrasts=True)
    first = next(progress for progress in seen if progress.notes)
    assert first.stage == "place"
    assert str(first.notes[0]).startswith("swapped gray matter is brighter")
    notes = review(result)
    assert notes[0].id == "swapped"
    assert notes[0].action == "check whether T1c and FLAIR were swapped"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_real_patients_swapped_in_every_way(shared_data, record_property):
    folders = [*(shared_data / "patients").iterdir(), *(shared_data / "patients-automatic").iterdir()]
    folders += [shared_data / "heads-real" / name for name in ("Colin27", "CPTAC-C3L-00631")]
    atlas, tried, refused, noted, missed = default_model().atlas, 0, 0, 0, []
    for folder in sorted(folders):
        files = {n: folder / f"{n.lower()}.nii.gz" for n in NAMES}
        files = {n: path for n, path in files.items() if path.exists()}
        case = build_case({n: scan.image for n, scan in read_scans(files).items()})
        placed = place_atlas(case, atlas, place_affine(case, atlas).matrix, CONFIG.gem)
        assert check_order(case, placed) == (), folder.name
        found = tissue_ratios(case, placed)
        for a, b in combinations(files, 2):
            given = [find_contrast(name) for name in swapped(files, a, b)]
            worst = max(c.margin for c in contradictions(given, found))
            if {a, b} == {"T1", "T1c"}:
                assert worst < 0.05, folder.name
                continue
            tried, pair = tried + 1, explained_by(given, found)
            assert worst < 0.05 or set(pair or ()) == {a, b}, folder.name
            refused, noted = refused + (worst >= CLEAR), noted + (0.05 <= worst < CLEAR)
            missed += [(folder.name, a, b)] if worst < 0.05 else []
    record_property("tried", tried)
    record_property("refused", refused)
    record_property("noted", noted)
    assert tried == 110
    assert refused >= 104, missed
    assert refused + noted >= 107, missed


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pair", [("T1c", "FLAIR"), ("T1c", "T2"), ("T2", "FLAIR")])
def test_a_real_head_given_under_swapped_names(shared_data, pair):
    folder = shared_data / "patients" / "BraTS2021_00495"
    files = {n: folder / f"{m.lower()}.nii.gz" for n, m in zip(NAMES, swapped(NAMES, *pair))}
    case = build_case({n: scan.image for n, scan in read_scans(files).items()})
    with pytest.raises(ChannelError, match=rf"were {pair[0]} and {pair[1]} swapped"):
        pipeline.place(case, default_model())


def test_a_known_placement_keeps_its_notes(monkeypatch):
    known = AffineResult(np.eye(4), {}, (), (Note("B1", "x"),))
    monkeypatch.setattr(pipeline, "place_affine", lambda case, atlas: known)
    assert pipeline.place(head("T1c"), MODEL).notes == known.notes
