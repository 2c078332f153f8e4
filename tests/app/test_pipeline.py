"""The straight line: found what was drawn, resumes exactly, obeys what it is told."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest
import small_head
from scipy import ndimage as ndi
from small_run import CONFIG, MODEL, Memory, finished, run

from tumoar.app.pipeline import Given
from tumoar.app.request import Request
from tumoar.app.segment import check
from tumoar.geometry.image import Grid
from tumoar.inference.gem import place_atlas
from tumoar.inference.tally import Tally
from tumoar.numerics.threads import use_threads
from tumoar.result.checks import check_coverage, review
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.errors import ChannelError


@pytest.fixture(scope="module")
def undisturbed():
    return finished()


def same(a, b):
    return all(
        np.array_equal(getattr(a.tally, name), getattr(b.tally, name)) for name in ("l", "z", "y", "volumes")
    )


def test_finds_what_was_drawn(undisturbed):
    l, z, y = small_head.truth()
    votes = undisturbed.votes
    assert small_head.dice(votes.z, z) > 0.9
    assert small_head.dice(votes.y, y) > 0.85
    assert (votes.l == l)[z == 0].mean() > 0.9
    low, high = undisturbed.volume("GTV").spread()
    assert low - 1e-9 <= undisturbed.volume("GTV").mean <= high + 1e-9
    assert abs(undisturbed.volume("GTV").mean - y.sum() / 1000) < 0.1


def test_a_volume_shows_the_outline_first_and_then_the_spread_of_the_samples(undisturbed):
    volume = undisturbed.volume("GTV")
    low, high = volume.spread(0.90)
    assert volume.outlined == pytest.approx(undisturbed.mask("GTV").sum() / 1000)
    shown = f"{volume.outlined:.2f} cm³ outlined; spread of the samples {low:.2f}–{high:.2f} cm³"
    assert repr(volume) == f"Volume({shown})"
    with pytest.raises(ValueError, match="no calibration holds"):
        volume.interval()


def test_labels_show_tumor_over_anatomy(undisturbed):
    index = {t.name: t.index for t in undisturbed.table.tumor}
    votes = undisturbed.votes
    assert np.array_equal(undisturbed.labels == index["core"], votes.y == 1)
    assert np.array_equal(undisturbed.labels == index["edema"], (votes.z == 1) & (votes.y == 0))
    assert np.array_equal(undisturbed.mask("GTV"), votes.y == 1)
    assert undisturbed.probability("GTV").max() <= 1


def test_entropy_is_zero_where_all_samples_agree(undisturbed):
    tally, entropy = undisturbed.tally, undisturbed.entropy().ravel()[undisturbed.tally.at]
    sure = (tally.l == tally.samples).any(0) & np.isin(tally.z, (0, tally.samples))
    sure &= np.isin(tally.y, (0, tally.samples))
    assert (entropy[sure] == 0).all()
    assert (entropy[~sure] > 0).all()


@pytest.mark.parametrize("stop", [15, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 26))])
def test_resumes_to_the_same_bits(undisturbed, stop):
    keeper, steps = Memory(), []

    def interrupt(progress):
        steps.append(progress)
        if len(steps) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(keeper=keeper, watch=interrupt)
    resumed = run(keeper=keeper)
    assert same(resumed, undisturbed)
    assert resumed.infos == undisturbed.infos
    assert np.array_equal(resumed.theta.mu, undisturbed.theta.mu)


@pytest.mark.slow
def test_the_power_that_the_images_ask_for_stands_in_the_settings(undisturbed):
    """The small head has independent noise; what is left of correlation is tissue that differs by place."""
    assert Config().gibbs.tau == "images"
    assert 0.8 < undisturbed.config.gibbs.tau <= 1
    told = Config.model_validate(tomllib.loads("gibbs.tau = 0.3"))
    asked = run(
        config=CONFIG.model_copy(update={"gibbs": CONFIG.gibbs.model_copy(update={"tau": told.gibbs.tau})})
    )
    assert asked.config.gibbs.tau == 0.3
    assert not same(asked, undisturbed)
    with pytest.raises(ValueError, match="tau"):
        Config.model_validate({"gibbs": {"tau": 1.5}})


def test_does_not_depend_on_threads(undisturbed):
    before = use_threads(None)
    try:
        use_threads(1)
        assert same(run(), undisturbed)
    finally:
        use_threads(before)


@pytest.mark.slow
def test_chains_differ_and_are_pooled(undisturbed):
    both = run(config=CONFIG.model_copy(update={"chains": 2}))
    first, second = both.tallies
    assert same(undisturbed, replace(both, tallies=(first,), infos=both.infos[:1]))
    assert not np.array_equal(first.l, second.l)
    assert np.array_equal(both.tally.z, first.z + second.z)
    assert both.tally.samples == 20


@pytest.mark.slow
def test_samples_are_kept_when_asked_for_also_over_an_interruption(undisturbed):
    keeper, steps = Memory(), []

    def interrupt(progress):
        steps.append(progress)
        if (progress.stage, progress.done) == ("sample", 22):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(keeper=keeper, watch=interrupt, keeps_samples=True)
    result = run(keeper=keeper, keeps_samples=True)
    assert same(result, undisturbed)
    drawn = list(result.tally.iter_samples())
    assert len(drawn) == result.tally.samples
    share = np.mean([d.z & (1 - d.y) for d in drawn], axis=0)
    assert np.allclose(share, result.tally.fraction(tumor=("edema",)))
    chosen = result.table.structures[result.table.l("white matter")]
    share = np.mean([d.l == result.table.l(chosen.name) for d in drawn], axis=0)
    at = result.tally.at
    assert np.allclose(share.ravel()[at], result.tally.fraction((chosen.name,)).ravel()[at])
    assert undisturbed.tally.kept == []


@pytest.mark.slow
def test_no_tumor_leaves_organs_alone():
    result = run(config=CONFIG.model_copy(update={"tumor": False}), case=small_head.case(tumor=False))
    assert result.tally.z.max() == 0
    assert not [note for note in review(result) if note.id == "B43"]


@pytest.mark.slow
def test_healthy_head_has_no_tumor():
    result = run(case=small_head.case(tumor=False))
    assert result.volume("GTV").mean + result.volume("Edema").mean < 0.1
    assert "B43" in [note.id for note in review(result)]


@pytest.mark.slow
def test_given_tumor_is_held():
    _, z, _ = small_head.truth()
    z = z.astype(np.int8)
    result = run(given=Given(z, np.where(z == 1, -1, 0).astype(np.int8)))
    at, n = result.tally.at, result.tally.samples
    assert np.array_equal(result.tally.z, z.ravel()[at] * n)
    assert 0 < result.votes.y.sum() < z.sum()


@pytest.mark.slow
def test_given_tumor_is_kept_however_small():
    """What a user has drawn is delivered, also where a speck of the vote would be left out."""
    z = np.zeros((small_head.SIZE,) * 3, np.int8)
    z[tuple(n[0] for n in np.nonzero(small_head.truth()[1]))] = 1
    config = CONFIG.model_copy(update={"least_tumor": 0.1})
    result = run(config=config, given=Given(z, z))
    assert np.array_equal(result.votes.z, z == 1)
    assert not result.islands.any()


def _with_part_apart(result, core):
    """The result with a cube of 27 voxels away from its tumor that all samples call tumor, and these."""
    tally, copy = result.tally, _copied(result.tally)
    free = np.zeros(tally.shape, bool)
    free.ravel()[tally.at] = True
    free &= ~ndi.binary_dilation(result.votes.z == 1, iterations=3)
    x, y, z = np.argwhere(ndi.binary_erosion(free, np.ones((3, 3, 3))))[0]
    full = np.zeros(tally.shape, bool)
    full[x - 1 : x + 2, y - 1 : y + 2, z - 1 : z + 2] = True
    at = full.ravel()[tally.at]
    copy.z[at], copy.y[at] = tally.samples, tally.samples if core else 0
    D = result.case.D.copy()
    D[1, full] = 9.0  # as bright in FLAIR as edema must be
    return replace(result, case=replace(result.case, D=D), tallies=(copy,)), full


def test_small_part_apart_is_left_out_unless_it_has_core(undisturbed):
    """Volumes of the samples stay; so does the part where either least size is 0."""
    cubic = undisturbed.case.grid.voxel_volume / 1000
    config = undisturbed.config.model_copy(update={"least_tumor": 5 * cubic, "least_share": 0.2})
    start = replace(undisturbed, config=config)
    for core in (False, True):
        result, part = _with_part_apart(start, core)
        assert part.sum() < 0.2 * start.votes.z.sum()
        assert result.votes.z[part].any() == core
        assert result.islands.sum() == (0 if core else part.sum())
        assert result.volume("Edema").mean == start.volume("Edema").mean
    result, part = _with_part_apart(start, core=False)
    for update in ({"least_share": 0.0}, {"least_tumor": 0.0}):
        kept = replace(result, config=config.model_copy(update=update))
        assert kept.votes.z[part].all()


def test_review_tells_of_parts_left_out(undisturbed, monkeypatch):
    monkeypatch.setattr("tumoar.result.checks.LEAST_APART", 0.02)
    cubic = undisturbed.case.grid.voxel_volume / 1000
    config = undisturbed.config.model_copy(update={"least_tumor": 5 * cubic, "least_share": 0.2})
    result, _ = _with_part_apart(replace(undisturbed, config=config), core=False)
    assert any(n.id == "apart" for n in review(result))
    assert not any(n.id == "apart" for n in review(undisturbed))


@pytest.mark.slow
def test_excluded_voxels_take_no_part():
    excluded = np.zeros((small_head.SIZE,) * 3, bool)
    excluded[28:36, 20:28, 20:28] = True
    result = run(case=replace(small_head.case(), excluded=excluded))
    assert not result.votes.z[excluded].any()
    assert not np.isin(np.flatnonzero(excluded), result.tally.at).any()


def test_contrasts_that_cannot_show_tumor_are_refused():
    case = small_head.case()
    blind = replace(case, contrasts=(find_contrast("T1"), find_contrast("T2")))
    with pytest.raises(ChannelError, match="E5-B41 these contrasts cannot"):
        run(case=blind)
    with pytest.raises(ChannelError, match="E5-B41 these contrasts cannot"):
        check(Request(case=blind))  # the dry run


def test_image_with_a_hole_is_refused():
    case = small_head.case()
    D = case.D.copy()
    D[1, 18:30, 18:30, 18:30] = np.nan
    with pytest.raises(ChannelError, match="E5-B24 FLAIR has no usable value in"):
        run(case=replace(case, D=D))


def test_image_may_reach_beyond_the_mesh():
    """Space that the atlas does not cover is no brain, with or without values."""
    case = small_head.case()
    D = np.pad(case.D, ((0, 0), (0, 30), (0, 0), (0, 0)), constant_values=np.nan)
    grid = Grid((small_head.SIZE + 30, small_head.SIZE, small_head.SIZE), np.eye(4))
    wide = replace(case, D=D, grid=grid)
    check_coverage(wide, place_atlas(wide, MODEL.atlas, np.eye(4), CONFIG.gem))


def test_review_sees_a_contrast_that_is_not_what_its_name_says(undisturbed):
    case = replace(undisturbed.case, contrasts=(find_contrast("T2"), find_contrast("FLAIR")))
    notes = review(replace(undisturbed, case=case))
    assert any((n.id, n.where, n.action) == ("B27", "T2", "check that the image is a T2") for n in notes)
    assert not any(n.id == "B27" for n in review(undisturbed))


def test_review_sees_that_nothing_identifies_core(undisturbed):
    case = replace(undisturbed.case, contrasts=(find_contrast("T2"), find_contrast("FLAIR")))
    assert any(n.id == "B42" for n in review(replace(undisturbed, case=case)))
    assert not any(n.id == "B42" for n in review(undisturbed))


@pytest.mark.parametrize(("slices", "said"), [(18, "seen in part"), (44, "NOT SEEN")])
def test_review_sees_organs_outside_the_images(undisturbed, slices, said):
    D = undisturbed.case.D.copy()
    D[:, :slices] = np.nan
    notes = review(replace(undisturbed, case=replace(undisturbed.case, D=D)))
    assert any((n.id, n.where) == ("B37", "Brain") and n.text.startswith(said) for n in notes)
    assert not any(n.id == "B37" for n in review(undisturbed))


def test_review_sees_tumor_at_the_border(undisturbed):
    tally = undisturbed.tally
    all_of_it = undisturbed.config.model_copy(update={"least_tumor": 0})
    moved = replace(undisturbed, tallies=(_shifted(tally),), config=all_of_it)
    assert any(n.id == "B44" for n in review(moved))


def _shifted(tally):
    out = _copied(tally)
    out.z[np.argmin(tally.at % tally.shape[2])] = tally.samples
    return out


def _copied(tally):
    """The same samples, with votes for tumor that may be changed."""
    out = Tally(tally.labels, np.zeros(tally.shape, np.uint8))
    out.at, out.l, out.samples, out.volumes = tally.at, tally.l, tally.samples, tally.volumes
    out.z, out.y = tally.z.copy(), tally.y.copy()
    return out


def test_model_needs_volumes():
    with pytest.raises(ValueError, match="tumor_mm3"):
        replace(MODEL, tumor_mm3={"core": 1.0})
