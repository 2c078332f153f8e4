"""Settings: whatever a file or a flag says is a configuration within bounds, or one sentence."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tumoar.app.settings import resolve, stamp_settings
from tumoar.vocabulary.config import FAST, PAPER, Config, GemConfig, GibbsConfig, Level, Soft
from tumoar.vocabulary.errors import TumoarError, UsageError

NONE = {"fast": False, "tumor": True, "prior": None, "gtv": None, "chains": None, "gibbs": {}}


def resolved(folder, content, **flags):
    path = folder / "run.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return resolve(path, **NONE | flags)


WRONG = {
    "a number for a table": "gibbs = 5",
    "a list for a table": "gem = [1]",
    "a table for a list": "[gem.levels]\nspacing = 1",
    "a table for a number": "[chains]\na = 1",
    "an empty table for a number": "chains = {}",
    "no level": "[gem]\nlevels = []",
    "many levels": f"[gem]\nlevels = [{'{spacing = 2, smoothing = 1},' * 9}]",
    "voxels of a nanometer": "[gem]\nlevels = [{spacing = 1e-6, smoothing = 0}]",
    "voxels of a kilometer": "[gem]\nlevels = [{spacing = 1e6, smoothing = 0}]",
    "blurred beyond the head": "[gem]\nlevels = [{spacing = 2, smoothing = 1e9}]",
    "infinite w": "[gem]\nw = inf",
    "w of nothing": "[gem]\nw = nan",
    "w all but 0": "[gem]\nw = 1e-320",
    "infinite tolerance": "[gem]\ntolerance = inf",
    "infinite stiffness": "[gem]\nstiffness = inf",
    "largest stiffness": "[gem]\nstiffness = 1e308",
    "least stiffness": "[gem]\nstiffness = 5e-324",
    "endless iterations": "[gem]\nouter_iterations = 9223372036854775807",
    "no samples": "[gibbs]\nsamples = 0",
    "huge samples": f"[gibbs]\nsamples = {'9' * 400}",
    "samples as text": '[gibbs]\nsamples = "50"',
    "samples as truth": "[gibbs]\nsamples = true",
    "samples as a fraction": "[gibbs]\nsamples = 10.5",
    "tau of nothing": "[gibbs]\ntau = nan",
    "tau unknown": '[gibbs]\ntau = "often"',
    "many chains": "chains = 300",
    "chains times samples": "chains = 16\n[gibbs]\nsamples = 16",
    "tumor as text": 'tumor = "no"',
    "tumor as a number": "tumor = 1",
    "a date": "chains = 1979-05-27",
    "infinite beta": "beta_z = inf",
    "infinite level": "level_y = -inf",
    "soft without strength": "[soft_z]\nlevel = 1\nstrength = 0",
    "an unknown setting": "[gibbs]\nburnin = 3",
    "a name that is a message": '"\\u001b[2J" = 1',
    "a name without end": f"{'a' * 5000} = 1",
    "nested": f"a = {'[' * 20_000}",
    "nested tables": f"a = {'{a = ' * 5_000}",
    "Latin-1": "prior = 'Bär'".encode("latin-1"),
    "zeros": b"\0" * 100,
    "empty": b"",
    "a year beyond all": "a = 99999-01-01",
    "not TOML": "chains = ",
}


@pytest.mark.parametrize("kind", WRONG)
def test_settings_that_make_no_sense_are_one_sentence(tmp_path, kind):
    with pytest.raises(TumoarError) as refusal:
        resolved(tmp_path, WRONG[kind])
    assert refusal.value.exit_code in (2, 3)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"gibbs": {"samples": 0}}, "setting gibbs.samples"),
        ({"gibbs": {"samples": 10**40}}, "setting gibbs.samples"),
        ({"gibbs": {"burn_in": -1}}, "setting gibbs.burn_in"),
        ({"chains": 300}, "setting chains"),
        ({"chains": 6}, "chains times samples must not exceed 255"),
    ],
)
def test_flags_that_make_no_sense_are_one_sentence(flags, sentence):
    with pytest.raises(UsageError, match=sentence):
        resolve(None, **NONE | flags)


def test_a_flag_wins_over_the_file_and_the_file_over_the_defaults(tmp_path):
    found = resolved(
        tmp_path, "chains = 2\n[gibbs]\nsamples = 40\n[gem]", gibbs={"samples": 20, "burn_in": None}
    )
    assert (found.chains, found.gibbs.samples, found.gibbs.burn_in) == (2, 20, 200)
    assert resolved(tmp_path, "tumor = true", tumor=False).tumor is False
    assert resolved(tmp_path, "tumor = false").tumor is False


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_number_may_be_infinite(value):
    numbers = 0
    for table in (Config, GemConfig, GibbsConfig, Level, Soft):
        for name, field in table.model_fields.items():
            if "float" in str(field.annotation):
                numbers += 1
                whole = {"spacing": 1.0, "smoothing": 0.0} if table is Level else {}
                whole |= {"strength": 1.0, "level": 0.0} if table is Soft else {}
                with pytest.raises(ValidationError):
                    table.model_validate(whole | {name: value})
    assert numbers == 24


NAMES = [*Config.model_fields, *GemConfig.model_fields, *GibbsConfig.model_fields, "spacing", "strength", "x"]
EDGES = [
    0, 1, -1, 2, 50, 255, 256, 2**31, 2**63 - 1, -(2**63), 0.0, -0.0, 0.5, 1.0, 1e-6, 1e-300, 5e-324, 1e308,
    math.inf, -math.inf, math.nan, True, False, "", "crbm", "mrf", "images", "x\u202e\x7f",
]  # fmt: skip


def toml(value):
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\u{ord(c):04x}" for c in value) + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{k}" = {toml(v)}' for k, v in value.items()) + "}"
    return repr(value)


VALUES = st.recursive(
    st.one_of(
        st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text("abc é", max_size=5)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=6,
)
EDGE = st.sampled_from(EDGES)
LEVEL = st.fixed_dictionaries(
    {"spacing": st.sampled_from([0.999, 1, 2, 5, 5.1]), "smoothing": st.sampled_from([0, 2, 10, 11])}
)
TABLES = st.fixed_dictionaries(
    {},
    optional={
        "gem": st.one_of(
            st.dictionaries(st.sampled_from(list(GemConfig.model_fields)), VALUES, max_size=3),
            st.fixed_dictionaries({"levels": st.lists(LEVEL, max_size=9)}),
        ),
        "gibbs": st.dictionaries(
            st.sampled_from(list(GibbsConfig.model_fields)), st.sampled_from(EDGES), max_size=3
        ),
        "soft_z": st.dictionaries(
            st.sampled_from(list(Soft.model_fields)), st.sampled_from(EDGES), max_size=3
        ),
        "chains": EDGE,
        "beta_z": EDGE,
        "prior": EDGE,
    },
)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.one_of(TABLES, st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)))
def test_any_table_is_a_configuration_or_a_refusal(tmp_path_factory, table):
    folder = tmp_path_factory.getbasetemp()
    text = "\n".join(f'"{name}" = {toml(value)}' for name, value in table.items())
    try:
        found = resolved(folder, text or "# nothing")
    except UsageError as error:
        sentence = str(error)
    else:
        sentence = ""
    if sentence:
        assert sentence.startswith("E2-B55 ")
        assert sentence.isprintable()
        return
    assert Config.model_validate(found.model_dump()) == found
    assert all(1 <= level.spacing <= 5 for level in found.gem.levels)
    assert 1 <= found.chains * found.gibbs.samples <= 255


def test_a_method_has_its_settings_and_a_mark():
    config = resolve(None, **NONE | {"method": "paper"})
    assert config == PAPER
    assert stamp_settings("paper", config) == ("paper: the method of Agn et al. 2019",)
    assert resolve(None, **NONE | {"method": "default"}) == Config()
    assert stamp_settings(None, Config()) == stamp_settings("default", Config()) == ()


def test_a_default_run_with_other_settings_is_marked(tmp_path):
    (fast,) = stamp_settings(None, FAST, fast=True)
    assert fast == stamp_settings(None, FAST)[0] == "fast: a preview, not the full algorithm"
    short = resolved(tmp_path, "[gibbs]\nburn_in = 0", gibbs={"samples": 1})
    assert stamp_settings(None, short) == ("changed: gibbs.burn_in, gibbs.samples",)
    shorter = resolved(tmp_path, "least_tumor = 0.0", fast=True)
    assert stamp_settings(None, shorter, fast=True) == (fast, "changed: least_tumor")
    asked = resolve(None, **NONE | {"tumor": False, "gtv": "flair", "chains": 3})
    assert stamp_settings(None, asked) == (), "the result shows it"


def test_a_file_and_flags_change_a_method_and_the_mark_says_what(tmp_path):
    text = "least_tumor = 0.1\n[gem]\nbending = 0.02\n[soft_z]\nstrength = 0.75"
    config = resolved(tmp_path, text, method="paper", gibbs={"samples": 20})
    assert config.gem == PAPER.gem.model_copy(update={"bending": 0.02})
    assert config.soft_z == PAPER.soft_z.model_copy(update={"strength": 0.75})
    (stamp,) = stamp_settings("paper", config)
    assert stamp.endswith("2019, except gem.bending, gibbs.samples, least_tumor, soft_z.strength")
    other = resolved(
        tmp_path,
        "[gibbs]\nfull_every = 2\nrest_every = 2\nburn_in = 1\nsamples = 1\ntau = 0.5",
        method="paper",
    )
    assert stamp_settings("paper", other)[0].endswith("gibbs.full_every, gibbs.rest_every and 1 more")


@pytest.mark.parametrize(
    ("given", "flags", "sentence"),
    [
        (None, {"method": "papers"}, "unknown method 'papers'"),
        (None, {"method": "paper", "fast": True}, "both fast and the method paper given"),
        (Config(), {"method": "paper"}, "both the method paper and a Config given"),
    ],
)
def test_methods_that_make_no_sense_are_refused(given, flags, sentence):
    with pytest.raises(UsageError, match=sentence):
        resolve(given, **NONE | flags)
