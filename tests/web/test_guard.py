"""Attacks on the server: each is refused, and changes nothing."""

from __future__ import annotations

import pytest
from small_review import write_small
from starlette.testclient import TestClient

from tumoar.review.session import Session
from tumoar.web.app import review_app
from tumoar.web.guard import MOST_BODY
from tumoar.web.places import identify

PORT = 8123
TOKEN = "right"
STROKE = {"structure": "GTV", "inside": True, "runs": [5, 3]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("guard") / "case")


@pytest.fixture(scope="module")
def app(folder):
    return review_app(folder, None, TOKEN, PORT)


@pytest.fixture(scope="module")
def path(folder):
    return f"/api/reviews/{identify(folder)}"


def client(app, *, host=f"127.0.0.1:{PORT}", token=TOKEN, **headers):
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {} if token is None else {"Authorization": f"Bearer {token}"}
    return TestClient(app, base_url=f"http://{host}", headers=given | found, follow_redirects=False)


def test_the_page_is_served_with_a_strict_policy_and_without_data(app, folder):
    answer = client(app, token=None).get("/")
    assert answer.status_code == 200
    policy = dict(
        part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert folder.name not in answer.text
    assert "set-cookie" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("token", [None, "", "wrong", "righ", "right ", "rightright", "ü"])
def test_a_second_user_without_the_token_sees_and_changes_nothing(app, path, folder, token):
    header = {} if token is None else {"Authorization": f"Bearer {token}".encode()}
    other = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", headers=header)
    before = Session.open(folder).revision
    reads = ("/api", path, f"{path}/masks/GTV", f"{path}/events", "/nothing")
    changes = (f"{path}/strokes", f"{path}/undo")
    for method, place in (*(("GET", p) for p in reads), *(("POST", p) for p in changes)):
        answer = other.request(method, place, json=STROKE if method == "POST" else None)
        assert answer.status_code == 401, place
        assert "GTV" not in answer.text
    assert Session.open(folder).revision == before


def test_the_token_counts_in_the_header_only(app, path):
    assert client(app, token=None).get(f"{path}?token={TOKEN}").status_code == 401
    assert client(app, token=None, cookie=f"token={TOKEN}").get(path).status_code == 401
    assert client(app, token=None, authorization=f"Basic {TOKEN}").get(path).status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.1.evil.example:{PORT}",
        f"[::1]:{PORT}",
    ],
)
def test_another_host_name_is_refused_even_with_the_token(app, path, host):
    for place in ("/", "/static/main.js", path):
        assert client(app, host=host).get(place).status_code == 421


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:9999", "http://127.0.0.1"],
)
def test_another_origin_is_refused_even_with_the_token(app, path, folder, origin):
    before = Session.open(folder).revision
    for answer in (
        client(app, origin=origin).get(path),
        client(app, origin=origin).post(f"{path}/strokes", json=STROKE),
        client(app, origin=origin).options(path),
    ):
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    assert Session.open(folder).revision == before


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_on_another_port_cannot_embed_ours(app, path, site):
    for place in ("/", "/static/main.js", path):
        assert client(app, sec_fetch_site=site, sec_fetch_mode="no-cors").get(place).status_code == 403
    visit = client(app, sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document")
    assert visit.get("/").status_code == 200  # a click on the address, or the file that tumoar opens
    frame = client(app, sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe")
    assert frame.get("/").status_code == 403


def test_the_page_itself_is_answered(app, path):
    own = client(app, origin=f"http://127.0.0.1:{PORT}", sec_fetch_site="same-origin")
    assert own.get(path).status_code == 200
    assert client(app, host=f"localhost:{PORT}").get(path).status_code == 200


def test_bodies_are_bounded_whether_or_not_they_say_their_length(app, path, folder):
    before = Session.open(folder).revision
    mine = client(app)
    assert mine.post(f"{path}/strokes", content=b" " * (MOST_BODY + 1)).status_code == 413
    chunks = (b" " * 2**20 for _ in range(MOST_BODY // 2**20 + 2))
    assert mine.post(f"{path}/strokes", content=chunks).status_code == 413
    lie = {"Content-Length": "99999999999999999999999"}
    assert mine.post(f"{path}/strokes", content=b"{}", headers=lie).status_code in (400, 413)
    assert Session.open(folder).revision == before


@pytest.mark.parametrize(
    "name",
    [
        "../page.html",
        "..%2f..%2f__init__.py",
        "%2e%2e/app.py",
        "/etc/passwd",
        "page.html",
        "review.js%00.css",
        "niivue.js/../x",
    ],
)
def test_no_other_file_is_served(app, name):
    answer = client(app).get(f"/static/{name}")
    assert answer.status_code in (401, 404)
    assert "passwd" not in answer.text
    assert "import" not in answer.text


GOOD = '{"structure": "GTV", "inside": true, '


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[]",
        "{",
        '{"structure": "GTV"}',
        '{"structure": "GTV", "inside": 1, "runs": [1, 1]}',
        '{"structure": "../../GTV", "inside": true, "runs": [1, 1]}',
        GOOD + '"runs": []}',
        GOOD + '"runs": [1]}',
        GOOD + '"runs": [-1, 1]}',
        GOOD + '"runs": [0, -5]}',
        GOOD + '"runs": [0, 1000000000000]}',
        GOOD + '"runs": [110591, 2]}',
        GOOD + '"runs": [99999999999999999999, 1]}',
        GOOD + '"runs": [1.5, 1]}',
        GOOD + '"runs": [1, 1], "path": "/etc"}',
        GOOD + '"runs": [1, 1], "who": "<script>"}',
    ],
)
def test_a_bad_stroke_is_refused_with_a_sentence(app, path, folder, body):
    before = Session.open(folder).revision
    answer = client(app).post(f"{path}/strokes", content=body)
    assert answer.status_code == 422
    assert answer.json()["error"]
    assert str(folder.parent) not in answer.text
    assert Session.open(folder).revision == before


def test_another_result_is_not_opened(app):
    for key in ("0" * 16, "%2e%2e", "%2e%2e%2fcase"):
        assert client(app).get(f"/api/reviews/{key}").status_code in (404, 422)
