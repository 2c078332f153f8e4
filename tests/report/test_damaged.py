"""A report whose data were edited, cut or replaced is refused in one sentence, or made again as it is."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import re
import shutil
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from small_result import small_result

import tumoar.cli as cli
from tumoar.io.manifest_schema import seal
from tumoar.report import read_data, render, report_data, schema
from tumoar.result.folder import Options, write_result
from tumoar.vocabulary.errors import UnreadableFileError
from tumoar.vocabulary.notes import Note

NOTES = (Note("B40", "eyes cannot be seen"),)
CURVE = {"name": "Brainstem", "color": "#2ca02c", "dose": [0.0, 30.0], "volume": [100.0, 0.0]}
DOSE = [{**CURVE, "low": [100.0, 0.0], "high": [100.0, 1.0]}]
LIMIT = {"light": "green", "structure": "Brainstem", "metric": "D0.03cc", "value": 1.0, "limit": 54.0}
LIMITS = [{**LIMIT, "hard": 60.0, "share_of_samples_above": 0.5}]


@pytest.fixture(scope="module")
def data():
    return report_data(small_result(), NOTES, {"version": "1", "dose": DOSE, "limits": LIMITS})


def page(data) -> str:
    """The part of a page that its data are read from."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f'<p><script type="application/json" id="data">{text}</script>'


def changed(data, path, value):
    """A copy with another value at a path; `...` takes the key away."""
    out = copy.deepcopy(data)
    *way, last = path
    place = out
    for key in way:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return out


def paths(value, above=()):
    """Where there is something, of rows the first two."""
    if above:
        yield above
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*above, key))
    elif isinstance(value, list):
        for number, item in enumerate(value[:2]):
            yield from paths(item, (*above, number))


BOMB = b64encode(gzip.compress(bytes(20 * 1024**2), 1)).decode()
DAMAGED = {
    "format": [(("format",), "2"), (("format",), [1]), (("format",), True)],
    "status": [(("status",), "FINE"), (("status",), ...)],
    "numbers": [(("volumes", 0, "mean"), "12"), (("volumes", 0, "outlined"), None)],
    "too large": [(("volumes", 0, "sd"), 1e300), (("center", 0), -1e200)],
    "a color": [(("volumes", 0, "color"), "red;x:y"), (("legend", 0, "color"), "#12345")],
    "no width": [(("intensity", 0, "components", 0, "sd"), 0)],
    "no values": [(("intensity", 0, "density"), []), (("convergence", "objective"), [])],
    "no chain": [(("convergence", "chains"), 0), (("convergence", "chains", 0, "GTV"), [])],
    "uneven": [(("convergence", "chains", 0, "GTV", 0), ...), (("dose", 0, "volume"), [1.0])],
    "shape": [(("grid", "shape"), [48, 48]), (("grid", "shape", 0), 0)],
    "affine": [(("grid", "affine"), [[1, 0, 0, 0]])],
    "base64": [(("labels",), "%%%"), (("contrasts", 0, "nifti"), "ü"), (("pictures", 0, "png"), "AAA")],
    "no gzip": [(("labels",), "AAAA"), (("maps", 0, "nifti"), "")],
    "bomb": [(("labels",), BOMB)],
    "no png": [(("pictures", 0, "png"), "AAAA"), (("bias", 0, "png"), "")],
    "no contrast": [(("contrasts",), []), (("contrasts",), {}), (("contrasts", 0), 7)],
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_data_are_refused(data, kind, monkeypatch):
    monkeypatch.setattr(schema, "MOST_BYTES", 10 * 1024**2)
    for path, value in DAMAGED[kind]:
        with pytest.raises(UnreadableFileError, match=r"^E3-report the report's data"):
            read_data(page(changed(data, path, value)))


@pytest.mark.parametrize("part", ["contrasts", "pictures"])
def test_a_payload_that_is_cut_is_refused(data, part):
    key = {"contrasts": "nifti", "pictures": "png"}[part]
    content = b64decode(data[part][0][key])
    cut = b64encode(content[: len(content) // 2]).decode()
    with pytest.raises(UnreadableFileError, match=rf"E3-report .* \| found: {part}\.0"):
        read_data(page(changed(data, (part, 0, key), cut)))


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "7", '"x"', "NaN", "[" * 100_000, '{"a":' * 50_000, "1" * 10_000, "{'a': 1}"],
)
def test_what_is_no_table_of_json_is_refused(text):
    with pytest.raises(UnreadableFileError, match=r"^E3-report the report's data are damaged"):
        read_data(page(text))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "1" * 5000])
def test_numbers_that_are_none_are_refused(data, text):
    whole = re.sub(r'"burn_in": \d+', f'"burn_in": {text}', json.dumps(data))
    with pytest.raises(UnreadableFileError):
        read_data(page(whole))


def test_half_a_character_is_refused(data):
    for path in (("notes", 0, "text"), ("settings", "seed"), ("unknown",)):
        with pytest.raises(UnreadableFileError):
            read_data(page(changed(data, path, "\ud800")))


def test_the_refusal_repeats_nothing_of_the_data(data):
    with pytest.raises(UnreadableFileError) as stop:
        read_data(page(changed(data, ("settings", "Jane Doe"), {"Jane": "Doe"})))
    assert "Jane" not in str(stop.value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "GTV", "#2ca02c", "</script>", "OK", "{{ 7 }}", "≥", "a" * 20_000])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_changed_data_are_refused_or_drawn(data, draw):
    where = list(paths(data))
    out = data
    for _ in range(draw.draw(st.integers(1, 3))):
        path = draw.draw(st.sampled_from(where))
        try:
            out = changed(out, path, draw.draw(JSON | st.just(...)))
        except (KeyError, IndexError, TypeError):  # an earlier change took it away
            continue
    try:
        found = read_data(page(out))
    except UnreadableFileError:
        return
    again = render(found)
    assert read_data(again) == out
    again.encode("utf-8")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(max_size=40))
@example('{"format": 2}')
@example("\\ud800")
def test_any_text_in_place_of_the_data_is_refused(text):
    with pytest.raises(UnreadableFileError, match=r"^E3-report "):
        read_data(page(text))


# ---- on disk, with a manifest that agrees ------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("finished") / "out"
    write_result(folder, small_result(), NOTES, {"key": "k"}, Options(), lambda whole: render(data), [])
    return folder


@pytest.fixture
def out(tmp_path, finished):
    return Path(shutil.copytree(finished, tmp_path / "out"))


def replaced(out, content: bytes | None):
    """Another page, and its digest in the manifest."""
    manifest = json.loads((out / "run.json").read_text())
    if content is None:
        (out / "report.html").unlink()
        (out / "report.html").mkdir()
        del manifest["files"]["report.html"]
    else:
        (out / "report.html").write_bytes(content)
        manifest["files"]["report.html"] = hashlib.sha256(content).hexdigest()
    (out / "run.json").write_text(seal(manifest))


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main([str(a) for a in arguments])
    return stop.value.code, capfd.readouterr().err


def test_a_page_with_whole_data_is_made_again_whatever_is_around_them(out, capfd):
    before = (out / "report.html").read_bytes()
    assert call(capfd, "report", out) == (0, "")
    assert (out / "report.html").read_bytes() == before
    end = before.index(b"</script>", before.index(b'id="data"')) + 9
    replaced(out, b"<b>" + before[before.index(b"<script") : end])
    assert call(capfd, "report", out) == (0, "")
    assert (out / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda html: b"",
        lambda html: html[: html.index(b'id="data"') + 5000],
        lambda html: html.replace(b'"status":"', b'"status":["'),
        lambda html: html.replace(b'"nifti":"H4', b'"nifti":"H5'),
        lambda html: html.replace(b'"light":', b'"dark":'),
        lambda html: b"\xff\xfe" + html,
        lambda html: b"\x00" * 1000,
        lambda html: b"<html></html>",
        lambda html: None,
    ],
    ids=["empty", "data cut", "json", "gzip", "limits", "latin", "zeros", "other page", "folder"],
)
def test_a_damaged_page_with_a_digest_that_agrees_is_refused_in_one_sentence(out, capfd, damage):
    replaced(out, damage((out / "report.html").read_bytes()))
    before = {p.name for p in out.iterdir()}
    code, err = call(capfd, "report", out)
    assert code in (3, 12), err
    assert re.fullmatch(r"E\d+-[\w-]+ [^\n]*\n", err), err
    assert {p.name for p in out.iterdir()} == before


def test_a_page_beyond_any_size_is_refused_before_it_is_read(out, capfd, monkeypatch):
    from tumoar.report import page as pages

    monkeypatch.setattr(pages, "MOST_PAGE", 1000)
    code, err = call(capfd, "report", out)
    assert code == 10
    assert err.startswith("E10-B6 the report is too large")
