"""Reviews as the server keeps them: what a page may do while something else changes the result."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_result import small_result
from small_review import write_small
from starlette.testclient import TestClient

from tumoar.result.folder import Options, write_result
from tumoar.review.again import CancelledError
from tumoar.review.session import Session
from tumoar.vocabulary.errors import BusyError, OutputError, UsageError
from tumoar.web.app import review_app
from tumoar.web.places import identify
from tumoar.web.reviews import Review
from tumoar.web.server import bind

PORT = 8124
STROKE = {"structure": "GTV", "inside": True, "runs": [5, 3]}


@pytest.fixture
def folder(tmp_path):
    return write_small(tmp_path / "case")


@pytest.fixture
def client(folder):
    headers = {"Authorization": "Bearer right"}
    return TestClient(
        review_app(folder, None, "right", PORT), base_url=f"http://127.0.0.1:{PORT}", headers=headers
    )


@pytest.fixture
def path(client, folder):
    start = f"/api/reviews/{identify(folder)}"
    return f"{start}-{client.get(start).json()['result']}"


def sampled(review, monkeypatch, outcome):
    """State of a sampling that the user stopped when it was about to end so."""

    def sample_again(self, progress, cancelled):
        review.stop()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(Session, "sample_again", sample_again)
    review.sample()
    review.close()
    return review.sampling.describe()


def test_a_page_of_a_result_that_was_replaced_reads_and_changes_nothing(client, path, folder):
    assert client.get(f"{path}/masks/GTV").status_code == 200
    write_result(folder, small_result(tumor=False), [], {"reference": "T1c"}, Options(), lambda m: "", [])
    for answer in (
        client.get(f"{path}/masks/GTV"),
        client.get(f"{path}/events"),
        client.post(f"{path}/strokes", json=STROKE),
        client.post(f"{path}/approve", json={"initials": "ABC"}),
    ):
        assert answer.status_code == 422
        assert "replaced" in answer.json()["error"]
    assert not (folder / "review").exists()


def test_a_sampling_that_is_stopped_too_late_says_what_changed(folder, monkeypatch):
    found = sampled(Review(folder), monkeypatch, ("GTV",))
    assert (found["state"], found["changed"]) == ("done", ["GTV"])


def test_a_sampling_that_is_stopped_in_time_says_so(folder, monkeypatch):
    assert sampled(Review(folder), monkeypatch, CancelledError("x", "cancelled"))["state"] == "stopped"


def test_a_sampling_that_fails_while_it_is_stopped_says_why(folder, monkeypatch):
    found = sampled(Review(folder), monkeypatch, OutputError("B58", "the disk is full"))
    assert (found["state"], found["message"]) == ("failed", "the disk is full")


def test_nothing_is_approved_while_it_is_sampled_again(folder):
    review = Review(folder)
    review.sampling.state = "running"
    with pytest.raises(BusyError, match="sampled again"):
        review.approve("ABC", "")
    assert review.session.approved is None


def test_the_page_approves_what_it_shows(client, path, folder):
    seen = client.get(f"{path}/state").json()["revision"]
    Session.open(folder).paint("GTV", True, np.array([[1, 2, 3]]))
    answer = client.post(f"{path}/approve", json={"initials": "ABC", "revision": seen})
    assert answer.status_code == 409
    seen = client.get(f"{path}/state").json()["revision"]
    assert client.post(f"{path}/approve", json={"initials": "ABC", "revision": seen}).status_code == 200


def test_the_page_says_what_an_interval_is_in_the_words_of_the_result(client, path, folder):
    volumes = client.get(f"{path}/state").json()["volumes"]
    assert volumes["GTV"]["what"] == "spread of the samples"
    json.dumps(volumes, allow_nan=False)


def test_a_port_belongs_to_one_server_from_the_start():
    with bind(0) as first, pytest.raises(UsageError, match="cannot listen"):
        bind(first.getsockname()[1])
