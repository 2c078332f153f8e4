"""`tumoar evaluate` on label maps whose scores are known."""

import csv

import numpy as np
import pytest

from tumoar.cli import main
from tumoar.geometry.image import Grid
from tumoar.io.nifti import write_nifti
from tumoar.result.scores import compare_paired
from tumoar.vocabulary.labels import default_labels

GRID = Grid((24, 24, 24), np.diag([1.0, 1.0, 2.0, 1.0]))
CORE = next(t.index for t in default_labels().tumor if t.name == "core")
EDEMA = next(t.index for t in default_labels().tumor if t.name == "edema")


def box(shift=0, core=CORE, edema=EDEMA):
    out = np.zeros(GRID.shape, np.uint8)
    out[4 + shift : 16 + shift, 4:16, 4:16] = edema
    out[6 + shift : 12 + shift, 6:12, 6:12] = core
    return out


def with_hippocampi(label_map):
    for place, s in enumerate(s for s in default_labels().structures if s.side and s.in_brain):
        label_map[20 + place, 20, 20] = s.index
    return label_map


@pytest.fixture
def maps(tmp_path):
    for number in range(3):
        write_nifti(tmp_path / f"found_{number}.nii.gz", with_hippocampi(box(number)), GRID)
        write_nifti(tmp_path / f"other_{number}.nii.gz", box(number + 2), GRID)
        write_nifti(tmp_path / f"true_{number}.nii.gz", box(core=4, edema=2), GRID)
        write_nifti(tmp_path / f"ours_{number}.nii.gz", with_hippocampi(box()), GRID)
    return tmp_path


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["evaluate", *map(str, arguments)])
    out, err = capfd.readouterr()
    return end.value.code, out, err


def table(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def numbered(maps, name, option=None):
    paths = [maps / f"{name}_{n}.nii.gz" for n in range(3)]
    return paths if option is None else [a for path in paths for a in (option, path)]


def test_scores_of_values_and_unions(maps, tmp_path, capfd):
    means = ["--values", "GTV=4", "--values", "GTV+Edema=2,4"]
    references = numbered(maps, "true", "--reference")
    code, _, err = call(
        capfd, *numbered(maps, "found"), *references, *means, "-o", tmp_path / "scores",
        *numbered(maps, "other", "--against"),
    )  # fmt: skip
    assert (code, err) == (0, "")
    rows = table(tmp_path / "scores" / "scores.tsv")
    assert [(r["result"], r["structure"]) for r in rows[:2]] == [
        ("found_0.nii.gz", "GTV"),
        ("found_0.nii.gz", "GTV+Edema"),
    ]
    assert [float(r["dice"]) for r in rows if r["structure"] == "GTV"] == pytest.approx(
        [1, 5 / 6, 4 / 6], abs=1e-4
    )
    assert float(rows[0]["volume"]) == pytest.approx(6**3 * 2 / 1000)
    pairs = table(tmp_path / "scores" / "paired.tsv")
    dice = next(r for r in pairs if (r["structure"], r["score"]) == ("GTV", "dice"))
    assert float(dice["difference"]) == pytest.approx(2 / 6, abs=1e-4)
    assert (tmp_path / "scores" / "boxes.png").stat().st_size > 1000
    assert len(table(tmp_path / "scores" / "summary.tsv")) == 2 * 7


def test_our_own_label_maps_need_no_values(maps, capfd):
    code, out, _ = call(capfd, maps / "found_1.nii.gz", "--reference", maps / "ours_1.nii.gz")
    assert code == 0
    gtv, brainstem = (next(s for s in out.splitlines() if f" {n} " in s) for n in ("GTV", "Brainstem"))
    assert "dice 0.8333" in gtv
    assert "dice 1.0 " in brainstem  # absent in both


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["found_0.nii.gz", "--reference", "true_0.nii.gz"],
            "E2-evaluate reference is not a tumoar label map",
        ),
        (["found_0.nii.gz", "found_1.nii.gz", "--reference", "true_0.nii.gz"], "E2-evaluate 2 results but 1"),
        (
            ["found_0.nii.gz", "--reference", "true_0.nii.gz", "--values", "Liver=1"],
            "E2-structures no structure",
        ),
        (["found_0.nii.gz", "--reference", "true_0.nii.gz", "--values", "GTV=x"], "E2-evaluate no values in"),
        (
            ["found_0.nii.gz", "--reference", "far.nii.gz"],
            "E4-evaluate-grid reference lies on the grid of none",
        ),
    ],
)
def test_refusals(maps, arguments, sentence, capfd, monkeypatch):
    monkeypatch.chdir(maps)
    affine = GRID.affine.copy()
    affine[0, 3] = 5
    write_nifti("far.nii.gz", with_hippocampi(box()), Grid(GRID.shape, affine))
    code, _, err = call(capfd, *arguments)
    assert err.startswith(sentence)
    assert str(code) == sentence[1]


def test_interval_of_a_paired_difference():
    rng = np.random.default_rng(1)
    b = rng.random(40)
    a = b + 0.1 + 0.05 * rng.standard_normal(40)
    mean, low, high, count = compare_paired(np.append(a, np.inf), np.append(b, 1.0), rng)
    assert count == 40
    assert low < mean < high
    assert mean == pytest.approx((a - b).mean())
    half = 1.96 * (a - b).std() / np.sqrt(40)
    assert high - low == pytest.approx(2 * half, rel=0.1)
