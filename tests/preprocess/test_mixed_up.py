"""Images that do not belong together, and images that do: what is noticed, and what is wrongly suspected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import small_head
from rt_files import write_series
from small_run import run
from synthetic_heads import head_grid, synthetic_head

from tumoar.geometry.image import Grid, Image
from tumoar.io.images import read_scans
from tumoar.preprocess.case import build_case
from tumoar.preprocess.register import rigid_transform
from tumoar.result.checks import review
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.errors import ChannelError, GeometryError, TumoarError

GRID = Grid((8, 6, 4), np.diag([-1.0, -1.5, 2.0, 1.0]))
SUSPICIONS = ("B32", "B33", "B35", "B36")
COARSE = (2.0, 2.0, 2.0)


def said(images, **options):
    """Ids of the refusal or of what was noted."""
    try:
        notes = build_case(images, **options).notes
    except TumoarError as refusal:
        return {refusal.id}
    return {note.id for note in notes if note.id in SUSPICIONS}


def heads(number):
    """Two contrasts of a head in a pose of its own, the second by header where it may be a little off."""
    rng = np.random.default_rng(number)
    pose = rigid_transform(rng.uniform(-8, 8, 3), rng.uniform(-4, 4, 3), [0, 0, 0])
    grids = [head_grid(COARSE, frame="1.2"), head_grid(COARSE, frame="1.2")]
    names = [("T1c", "FLAIR"), ("T1", "T2"), ("T1c", "T2"), ("T1", "FLAIR")][number % 4]
    return {n: synthetic_head(n, g, moved=pose, seed=number) for n, g in zip(names, grids)}


# ---- patients ----------------------------------------------------------------------------------------------

PERSON = {"PatientID": "A1", "PatientName": "Doe^Jane", "PatientBirthDate": "19500101", "PatientSex": "F"}
OTHERS = {"PatientID": "B2", "PatientName": "Doe^Joan", "PatientBirthDate": "19500102", "PatientSex": "M"}
SAME = {"PatientID": "A1 ", "PatientName": "DOE^JANE^^", "PatientBirthDate": "", "PatientSex": "f"}


def people(folder, changes):
    for name, person in (("T1c", PERSON), ("FLAIR", PERSON | changes)):
        write_series(folder / name, np.ones(GRID.shape), GRID, **person)
    read_scans({name: folder / name for name in ("T1c", "FLAIR")})


def test_other_patients_are_told_and_other_spellings_are_not(tmp_path, record_property):
    keywords = list(PERSON)
    sets = [[k for i, k in enumerate(keywords) if mask >> i & 1] for mask in range(1, 16)]
    for number, changed in enumerate(sets):
        with pytest.raises(GeometryError, match="E4-B34"):
            people(tmp_path / f"other{number}", {k: OTHERS[k] for k in changed})
        people(tmp_path / f"same{number}", {k: SAME[k] for k in changed})
    record_property("tried", 2 * len(sets))


# ---- frames ------------------------------------------------------------------------------------------------


def frames(number):
    pair = heads(number)
    _, second = pair
    image = pair[second]
    pair[second] = Image(image.data, replace(image.grid, frame=f"1.{number + 3}"))
    return pair


def test_other_frames_are_refused_or_told():
    assert said(frames(0), register=False) == {"B33"}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_sixty_other_frames(record_property):
    for number in range(60):
        assert "B33" in said(frames(number), register=number % 3 == 0)
    record_property("tried", 60)


# ---- sides and names ---------------------------------------------------------------------------------------


def flipped(number):
    pair = heads(number)
    _, second = pair
    pair[second] = Image(pair[second].data[::-1], pair[second].grid)
    return pair


def test_a_mirrored_channel_of_a_head_that_lies_straight_is_told():
    assert said(flipped(6)) == {"B36"}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_sixty_mirrored_channels(record_property):
    for number in range(60):
        assert said(flipped(number)) & {"B35", "B36"}, number
    record_property("tried", 60)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_good_sets_are_hardly_ever_suspected(record_property):
    alarms = [number for number in range(100) if said(heads(number))]
    assert len(alarms) <= 2, alarms
    record_property("tried", 100)


def t2_like(number):
    """A small head whose second channel is a T2: CSF bright, white matter dark."""
    case = small_head.case(seed=number)
    D = case.D.copy()
    D[1] = 11.0 - D[0] + np.random.default_rng(number).normal(0, small_head.SD, D[1].shape)
    return replace(case, D=D, contrasts=(find_contrast("T1c"), find_contrast("T2")))


def is_named_wrongly(case):
    """Refused before the fit; and by the fitted tissues, if the names are trusted."""
    try:
        run(case)
    except ChannelError as refusal:
        found = {note.id for note in review(run(case, trust_contrasts=True))}
        return refusal.id == "swapped" and {"swapped", "B27"} <= found
    return False


@pytest.mark.slow
def test_a_t2_given_as_t1c_is_told():
    case = t2_like(0)
    assert is_named_wrongly(replace(case, contrasts=case.contrasts[::-1]))
    assert not is_named_wrongly(case)


def test_a_flair_given_as_t1c_is_told():
    case = small_head.case()
    assert is_named_wrongly(replace(case, contrasts=case.contrasts[::-1]))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_swapped_channels(record_property):
    for number in range(50):
        case = t2_like(number) if number % 2 else small_head.case(seed=number)
        assert is_named_wrongly(replace(case, contrasts=case.contrasts[::-1])), number
    record_property("tried", 50)
