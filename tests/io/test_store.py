import io
import json
import zipfile

import numpy as np
import pytest
import reference_tetra as ref

from tumoar.io import store
from tumoar.model.atlas import Atlas
from tumoar.vocabulary.errors import ModelFileError, OutputError
from tumoar.vocabulary.labels import default_labels, parse_labels

LABELS = default_labels()


@pytest.fixture(scope="module")
def atlas():
    rng = np.random.default_rng(0)
    nodes, tetrahedra = ref.jittered(*ref.body_centered((3, 3, 3), 5.0), 0.5, rng)
    alpha = rng.dirichlet(np.full(LABELS.K, 0.05), len(nodes)).astype(np.float32)
    alpha[alpha < 1e-3] = 0
    alpha /= alpha.sum(1, keepdims=True)
    return Atlas(nodes, tetrahedra, alpha, LABELS, 0.2, {"heads": ["01", "02"], "note": "µ"})


@pytest.fixture
def stored(atlas, tmp_path):
    path = tmp_path / "model.npz"
    store.save_atlas(path, atlas)
    return path


def test_an_atlas_comes_back_the_same(atlas, stored):
    back = store.load_atlas(stored)
    for name in ("nodes", "tetrahedra", "alpha"):
        np.testing.assert_array_equal(getattr(back, name), getattr(atlas, name))
    assert (back.labels, back.stiffness, dict(back.provenance)) == (LABELS, 0.2, dict(atlas.provenance))


def test_the_same_content_is_the_same_bytes(atlas, stored, tmp_path):
    digest = store.save_atlas(tmp_path / "again.npz", store.load_atlas(stored))
    assert (tmp_path / "again.npz").read_bytes() == stored.read_bytes()
    assert store.save_atlas(stored, atlas) == digest


def test_the_label_table_goes_through_json():
    assert parse_labels(json.loads(json.dumps(store.labels_to_dict(LABELS)))) == LABELS


def test_several_sections_live_in_one_file(atlas, tmp_path):
    filters = {"w": np.ones((4, 7, 7, 7), np.float32), "b": np.zeros(4), "a": np.float64(-1).reshape(())}
    sections = {"atlas": store.atlas_section(atlas), "shape_z": store.Section(filters, {"trained_on": 30})}
    store.save_sections(tmp_path / "m.npz", sections)
    back = store.load_sections(tmp_path / "m.npz")
    assert set(back) == {"atlas", "shape_z"}
    assert back["shape_z"].card == {"trained_on": 30}
    for name, array in filters.items():
        np.testing.assert_array_equal(back["shape_z"].arrays[name], array, strict=True)
    with np.load(tmp_path / "m.npz", allow_pickle=False) as plain:
        np.testing.assert_array_equal(plain["shape_z/w"], filters["w"])


def repack(path, change):
    """Rewrite the file with its entries changed and, if the change keeps the card, a digest that fits."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    card = json.loads(entries.pop("model.json"))
    card.pop("sha256")
    change(card, entries)
    card["sha256"] = store._digest(card, entries)
    entries["model.json"] = json.dumps(card).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def npy(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def put(name, array):
    return lambda card, entries: entries.update({f"atlas/{name}.npy": npy(array)})


def edit(name, change):
    def apply(card, entries):
        array = np.load(io.BytesIO(entries[f"atlas/{name}.npy"])).copy()
        entries[f"atlas/{name}.npy"] = npy(change(array))

    return apply


def fold(tetrahedra):
    tetrahedra[3] = tetrahedra[3][[1, 0, 2, 3]]
    return tetrahedra


BAD = {
    "pickle": (
        "plain array",
        lambda c, e: e.update({"atlas/nodes.npy": npy(np.array([{}]), allow_pickle=True)}),
    ),
    "not finite": ("not finite", edit("nodes", lambda a: np.where(a == a[9], np.nan, a))),
    "probabilities": ("sum to 1", edit("alpha_value", lambda a: a * np.float32(1.1))),
    "folded": ("positive volume", edit("tetrahedra", fold)),
    "index out of range": ("each of the", edit("tetrahedra", lambda a: a + 1)),
    "negative index": ("once per node", edit("alpha_node", lambda a: a - 1)),
    "repeated probability": ("once per node", edit("alpha_node", lambda a: a * 0)),
    "label out of range": ("atlas", edit("alpha_label", lambda a: a + 200)),
    "mismatched lengths": ("atlas", edit("alpha_value", lambda a: a[:-1])),
    "wrong type": ("plain array", put("nodes", np.zeros((3, 3), np.complex128))),
    "fortran order": ("plain array", put("nodes", np.asfortranarray(np.zeros((4, 3))))),
    "flat": ("atlas", put("nodes", np.zeros(12))),
    "many dimensions": ("plain array", put("nodes", np.zeros((1,) * 6))),
    "short": ("plain array", lambda c, e: e.update({"atlas/nodes.npy": e["atlas/nodes.npy"][:-8]})),
    "missing array": ("missing or not listed", lambda c, e: e.pop("atlas/nodes.npy")),
    "extra array": ("missing or not listed", put("more", np.zeros(3))),
    "strange name": ("invalid name", lambda c, e: e.update({"../evil.npy": b""})),
    "other version": ("version 2", lambda c, e: c.update(version=2)),
    "other format": ("another program", lambda c, e: c.update(format="something")),
    "no stiffness": ("lacks 'stiffness'", lambda c, e: c["sections"]["atlas"]["card"].pop("stiffness")),
    "bad stiffness": ("stiffness", lambda c, e: c["sections"]["atlas"]["card"].update(stiffness=-1)),
    "sections of another kind": ("valid model.json", lambda c, e: c.update(sections=[1])),
}


@pytest.mark.parametrize("fault", BAD)
def test_unusable_content_is_refused(fault, stored):
    sentence, change = BAD[fault]
    repack(stored, change)
    with pytest.raises(ModelFileError, match=sentence) as refusal:
        store.load_atlas(stored)
    assert refusal.value.exit_code == 6
    assert "model.npz" in str(refusal.value)


def test_a_bad_label_table_is_refused(stored):
    repack(stored, lambda c, e: c["sections"]["atlas"]["card"]["labels"]["structure"][0].update(color="red"))
    with pytest.raises(ModelFileError):
        store.load_atlas(stored)


def test_every_flipped_byte_is_noticed_or_harmless(atlas, stored):
    content = stored.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(content), 200):
        damaged = bytearray(content)
        damaged[at] ^= 1 << rng.integers(8)
        stored.write_bytes(bytes(damaged))
        try:
            back = store.load_atlas(stored)
        except ModelFileError:
            continue
        np.testing.assert_array_equal(back.nodes, atlas.nodes)
        np.testing.assert_array_equal(back.alpha, atlas.alpha)


def test_every_cut_is_noticed(stored):
    content = stored.read_bytes()
    for end in range(0, len(content), 997):
        stored.write_bytes(content[:end])
        with pytest.raises(ModelFileError):
            store.load_atlas(stored)


def test_a_bomb_is_not_unpacked(stored, monkeypatch):
    monkeypatch.setattr(store, "_MAX_TOTAL", 1 << 20)
    repack(stored, put("nodes", np.zeros((1 << 18, 3))))
    with pytest.raises(ModelFileError, match="more than a model needs"):
        store.load_atlas(stored)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04"])
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(ModelFileError, match="not a model file"):
        store.load_sections(tmp_path / "x.npz")
    with pytest.raises(ModelFileError, match="cannot read"):
        store.load_sections(tmp_path / "absent.npz")


def test_nothing_is_left_when_writing_fails(atlas, tmp_path):
    target = tmp_path / "taken.npz"
    target.mkdir()
    with pytest.raises(OutputError):
        store.save_atlas(target, atlas)
    assert [p.name for p in tmp_path.iterdir()] == ["taken.npz"]


def test_sections_of_strange_names_or_types_are_not_written(tmp_path):
    for name, array in (("../x", np.zeros(3)), ("x", np.zeros(3, complex)), ("x", np.array(["a"]))):
        with pytest.raises(ValueError, match="plain names and types"):
            store.save_sections(tmp_path / "x.npz", {"atlas": store.Section({name: array}, {})})
