"""`tumoar dose` on structure sets of others: names, limits, and what is not judged."""

from __future__ import annotations

import csv
import os

import numpy as np
import pytest
from pydicom import dcmread
from rt_files import PLANTED, save, write_contours, write_rtdose

from tumoar.cli import main
from tumoar.geometry.image import Grid

DOSE = np.full((21, 21, 21), 50.0)
GRID = Grid(
    DOSE.shape,
    np.diag([-3.0, -3.0, 3.0, 1.0]) + np.array([[0, 0, 0, 30], [0, 0, 0, 30], [0, 0, 0, -30], [0] * 4]),
)


def box(size=10.0, x=0.0):
    """A cube as contours in planes 2 mm apart."""
    square = size * np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0.0]]) + [x, 0, 0]
    return [square + np.array([0, 0, z]) for z in np.arange(0.0, size + 0.1, 2.0)]


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    assert "E1-" not in err
    assert not any(planted in out + err for planted in PLANTED)
    return end.value.code, out, err


@pytest.fixture
def clinic(tmp_path):
    """Contours with the names of a clinic, and 50 Gy everywhere."""
    names = ("BRSTEM", "Chiasm", "OPT NRV L", "Optic Nerve-Rt", "Ring 2")
    write_contours(tmp_path / "RS.dcm", {name: box(x=-3.0 * i) for i, name in enumerate(names)}, "1.2.3")
    write_rtdose(tmp_path / "RD.dcm", DOSE, GRID, "1.2.3")
    return tmp_path


def rows(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def limits(path, *lines):
    text = "".join(f'[[limit]]\nstructure = "{n}"\nmetric = "{m}"\nlimit = {v}\n' for n, m, v in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_names_of_a_clinic_are_known_and_said(clinic, capfd):
    code, out, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "-o", clinic / "d")
    assert code == 0, err
    for line in (
        "BRSTEM is matched to Brainstem",
        "Chiasm is matched to OpticChiasm",
        "OPT NRV L is matched to OpticNrv_L",
        "Optic Nerve-Rt is matched to OpticNrv_R",
        "not judged: Hippocampus_L, Hippocampus_R: no structure of this name",
        "not judged: Ring 2: no limit",
    ):
        assert line in out.splitlines()
    judged = {row["structure"]: row for row in rows(clinic / "d" / "limits.tsv")}
    assert {name: row["light"] for name, row in judged.items()} == {
        "OpticChiasm": "green",
        "OpticNrv_L": "green",
        "OpticNrv_R": "green",
        "Brainstem": "green",
        "Hippocampus_L": "gray",
        "Hippocampus_R": "gray",
    }
    assert judged["Hippocampus_L"]["note"] == "no structure of this name"
    assert all(row["source"] for row in judged.values())
    named = {row["name"]: row["named_in_file"] for row in rows(clinic / "d" / "dose.tsv")}
    assert named["Brainstem"] == "BRSTEM"
    assert named["Ring 2"] == ""


def test_a_map_says_what_a_structure_is(clinic, capfd):
    arguments = ["dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm"]
    code, out, err = call(capfd, *arguments, "--map", "Ring 2=Hippocampus_L")
    assert code == 0, err
    assert "Ring 2 is matched to Hippocampus_L" in out
    assert any(line.startswith("red   Hippocampus_L") for line in out.splitlines())
    code, out, err = call(capfd, *arguments, "--map", "Ring 2=Brainstem")  # instead of the alias
    assert code == 0, err
    assert "Ring 2 is matched to Brainstem" in out
    assert "not judged: BRSTEM: no limit" in out


def test_a_map_to_a_name_in_ones_own_limits(clinic, capfd):
    own = limits(clinic / "l.toml", ("Ring", "mean", 40))
    code, out, err = call(
        capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "--limits", own, "--map", "Ring 2=Ring"
    )
    assert code == 0, err
    assert any(line.startswith("red   Ring") for line in out.splitlines())


@pytest.mark.parametrize(
    "pairs",
    [["Ring2=Brainstem"], ["BRSTEM"], ["=Brainstem"], ["BRSTEM="], ["BRSTEM=Liver"],
     ["BRSTEM=Brainstem", "BRSTEM=OpticChiasm"], ["BRSTEM=Brainstem", "Chiasm=Brainstem"]],
    ids=str,
)  # fmt: skip
def test_maps_that_change_nothing_or_too_much_are_refused(clinic, capfd, pairs):
    arguments = [part for pair in pairs for part in ("--map", pair)]
    code, _, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", *arguments)
    assert (code, err.split()[0]) == (2, "E2-map")


def test_two_structures_of_one_name_are_refused(clinic, capfd):
    write_contours(clinic / "RS.dcm", {"BRSTEM": box(), "Brain Stem": box(x=-20.0)}, "1.2.3")
    code, _, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm")
    assert (code, err.split()[0]) == (2, "E2-map")


def test_limits_in_the_words_of_a_clinic(clinic, capfd):
    own = limits(clinic / "l.toml", ("BRSTEM", "max", 40), ("chiasma", "max", 60), ("Ring 2", "mean", 60))
    arguments = ("dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "--limits", own)
    code, out, err = call(capfd, *arguments)
    assert code == 0, err
    lights = [tuple(line.split()[:2]) for line in out.splitlines() if line.startswith(("red", "green"))]
    assert lights == [("red", "Brainstem"), ("green", "OpticChiasm"), ("green", "Ring")]


def test_ones_own_limits_that_match_nothing_are_said_aloud(clinic, capfd):
    own = limits(clinic / "l.toml", ("Brainstem", "max", 40), ("Parotid_L", "mean", 26), ("Cord", "max", 45))
    arguments = ("dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "--limits", own, "-o", clinic / "d")
    code, _, err = call(capfd, *arguments)
    assert code == 0
    assert "NOT JUDGED: Parotid_L, Cord: no structure of this name" in err
    assert [r["light"] for r in rows(clinic / "d" / "limits.tsv")] == ["red", "gray", "gray"]
    limits(clinic / "l.toml", ("Parotid_L", "mean", 26))
    code, _, err = call(capfd, *arguments, "--overwrite")
    assert (code, err.split()[0]) == (2, "E2-limits")


@pytest.mark.parametrize(
    ("content", "id"),
    [
        (b"", "E3-B2"),
        (b"# nothing\n", "E2-limits"),
        (b"limit = true\n", "E2-limits"),
        (b"[[limit]]\n", "E2-limits"),
        (b"limit = " + b"[" * 20_000, "E2-B55"),
        (b"caf\xe9 = 1\n", "E3-B7"),
        (b"[[limit]]\nstructure='Brainstem'\nmetric='max'\nlimit=nan\n", "E2-limits"),
        (b"[[limit]]\nstructure='Brainstem'\nmetric='D101'\nlimit=5\n", "E2-limits"),
        (b"[[limit]]\nstructure='Brainstem'\nmetric='max'\nlimit=5\n" * 2, "E2-limits"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_limits_that_cannot_be_used_are_refused(clinic, capfd, content, id):
    (clinic / "l.toml").write_bytes(content)
    code, _, err = call(
        capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "--limits", clinic / "l.toml"
    )
    assert err.split()[0] == id
    assert code == int(id[1])


def test_pipes_are_refused_as_dose_and_as_limits(clinic, capfd):
    os.mkfifo(clinic / "pipe")
    for arguments in (
        ("--dose", clinic / "pipe"),
        ("--dose", clinic / "RD.dcm", "--limits", clinic / "pipe"),
        ("--dose", "/dev/zero"),
        ("--dose", clinic / "RD.dcm", "--limits", "/dev/zero"),
    ):
        code, _, err = call(capfd, "dose", clinic / "RS.dcm", *arguments)
        assert (code, err.split()[0]) == (3, "E3-B1")


def test_fractions_are_noted_wherever_a_dose_is_shown(clinic, capfd):
    write_rtdose(clinic / "RD.dcm", DOSE / 25, GRID, "1.2.3", DoseSummationType="FRACTION")
    arguments = ("dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "-o", clinic / "d")
    code, _, err = call(capfd, *arguments)
    assert (code, err.split()[0]) == (5, "E5-dose")
    code, out, err = call(capfd, *arguments, "--fractions", 25)
    assert code == 0, err
    note = "the dose is for one fraction, multiplied by 25"
    assert f"note: {note}" in out
    assert all(note in line for line in out.splitlines() if line.startswith("green"))
    assert all(note in row["note"] for row in rows(clinic / "d" / "dose.tsv"))
    assert all(note in row["note"] for row in rows(clinic / "d" / "limits.tsv") if row["light"] != "gray")
    assert {row["mean_Gy"] for row in rows(clinic / "d" / "dose.tsv")} == {"50.0"}


def test_a_structure_smaller_than_the_hot_volume_is_judged_by_its_maximum(clinic, capfd):
    write_contours(clinic / "RS.dcm", {"OpticChiasm": box(size=2.0)}, "1.2.3")
    rising = np.broadcast_to(np.linspace(20, 80, 21)[:, None, None], DOSE.shape)
    write_rtdose(clinic / "RD.dcm", rising, GRID, "1.2.3")
    arguments = ("dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "-o", clinic / "d")
    code, out, err = call(capfd, *arguments)
    assert code == 0, err
    (figures,) = rows(clinic / "d" / "dose.tsv")
    assert float(figures["volume_cm3"]) < 0.03
    assert figures["D0.03cc_Gy"] == "nan"
    assert figures["note"] == "smaller than 0.03 cm³: no D0.03cc, see its highest dose"
    verdict = next(row for row in rows(clinic / "d" / "limits.tsv") if row["structure"] == "OpticChiasm")
    assert verdict["value"] == figures["max_Gy"]
    assert "smaller than 0.03 cm³: judged by its highest dose" in verdict["note"]
    assert "smaller than 0.03 cm³" in next(line for line in out.splitlines() if verdict["light"] in line)


def test_a_dose_that_names_nobody_is_doubted(clinic, capfd):
    from nrrd_files import write_nrrd

    write_nrrd(clinic / "d.nrrd", DOSE.astype(np.float32), GRID)
    code, out, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "d.nrrd")
    assert code == 0, err
    assert out.startswith("note: the dose file names no patient or no frame of reference")


def test_structures_that_name_nobody_are_doubted(clinic, capfd):
    data = dcmread(clinic / "RS.dcm")
    for keyword in ("PatientID", "PatientName", "PatientBirthDate", "PatientSex"):
        setattr(data, keyword, "")
    save(data, clinic / "RS.dcm")
    code, out, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm")
    assert code == 0, err
    assert out.startswith("note: the structures name no patient or no frame of reference")


def test_a_structure_set_without_contours_is_refused(clinic, capfd):
    write_contours(clinic / "RS.dcm", {"Brainstem": []}, "1.2.3")
    code, _, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "-o", clinic / "d")
    assert (code, err.split()[0]) == (3, "E3-rtstruct")


@pytest.mark.parametrize("name", ["$x^$", "_Brain", "\\frac", "a" * 64, "<b>&amp;", "%s {0}"])
def test_any_name_can_be_drawn(clinic, capfd, name):
    write_contours(clinic / "RS.dcm", {name: box()}, "1.2.3")
    code, _, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "-o", clinic / "d")
    assert (code, err) == (0, "")
    assert (clinic / "d" / "dvh.svg").stat().st_size > 1000


def test_a_plan_of_two_gray_is_not_called_safe(clinic, capfd):
    """Some systems export one fraction and call it the plan."""
    write_rtdose(clinic / "RD.dcm", DOSE / 25, GRID, "1.2.3")
    arguments = ("dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm")
    code, out, err = call(capfd, *arguments)
    assert code == 0, err
    assert "note: the dose is low for a whole course, at most 2 Gy: use --fractions 1 if it is one" in out
    assert "green" not in out
    _, out, _ = call(capfd, *arguments, "--fractions", 1)
    assert "green" in out


def test_contours_given_twice_are_counted_once_and_noted(clinic, capfd):
    write_contours(clinic / "RS.dcm", {"Brainstem": [*box(), *box()]}, "1.2.3")
    write_rtdose(clinic / "RD.dcm", DOSE * 1.2, GRID, "1.2.3")
    code, out, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm")
    assert code == 0, err
    assert any(line.startswith("note: ") and "Brainstem" in line for line in out.splitlines())
    assert "volume_cm3 1.0 " in out
    assert any(line.startswith("red   Brainstem") for line in out.splitlines())


def test_tables_can_be_read_back_whatever_the_names_hold(clinic, capfd):
    names = ["a b", "Ring;2", '"q"', "x'y", "=1+1", "#"]
    write_contours(clinic / "RS.dcm", {name: box(x=-3.0 * i) for i, name in enumerate(names)}, "1.2.3")
    code, _, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "-o", clinic / "d")
    assert code == 0, err
    found = rows(clinic / "d" / "dose.tsv")
    assert len(found) == len(names)
    assert all(row["mean_Gy"] == "50.0" and None not in row for row in found)


def test_a_structure_with_open_contours_is_never_green(clinic, capfd):
    """What an open contour would enclose may be the hottest part."""
    data = dcmread(clinic / "RS.dcm")
    data.ROIContourSequence[0].ContourSequence[0].ContourGeometricType = "OPEN_PLANAR"
    save(data, clinic / "RS.dcm")
    code, _, err = call(capfd, "dose", clinic / "RS.dcm", "--dose", clinic / "RD.dcm", "-o", clinic / "d")
    assert code == 0, err
    judged = {row["structure"]: row for row in rows(clinic / "d" / "limits.tsv")}
    assert judged["Brainstem"]["light"] == "gray"
    assert "open contours" in judged["Brainstem"]["note"]
    assert judged["OpticChiasm"]["light"] == "green"
