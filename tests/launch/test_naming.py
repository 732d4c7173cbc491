"""Names and labels of a job: the same for a retry, others for another run, and always ones that Kubernetes takes."""

from __future__ import annotations

import random
import re
import string

import pytest

from clrflow.launch.cluster.naming import MAX_NAME, job_name, label_value, run_labels
from clrflow.launch.request import JobRequest

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")


def request(run_name: str = "nightly-2026", step: str = "train", key: str = "5e0f") -> JobRequest:
    return JobRequest(
        what="training", module="clrflow.training", arguments=("/w/job.json",), num_processes=2, run_name=run_name, step=step, key=key,
        folder="/w", output="/w/curves.json",
    )  # fmt: skip


def test_a_pipeline_name_of_100_characters_gives_a_name_of_at_most_50_that_is_the_same_each_time() -> None:
    long = "conditional-learned-retrieval-" * 4
    name = job_name(request(long[:100]), namespace="team", run_id="1f9")
    assert len(name) <= MAX_NAME
    assert DNS_1035.fullmatch(name)
    assert name.startswith("train-conditional-learned-retrieval")
    assert name == job_name(request(long[:100]), namespace="team", run_id="1f9")


def test_names_that_differ_only_after_the_cut_stay_apart() -> None:
    long = "a" * 100
    assert job_name(request(long + "1"), namespace="team") != job_name(request(long + "2"), namespace="team")


def test_each_part_of_the_identity_makes_another_name() -> None:
    names = {
        job_name(request(), namespace="team", run_id="1"),
        job_name(request(), namespace="other", run_id="1"),
        job_name(request(), namespace="team", run_id="2"),
        job_name(request(key="77aa"), namespace="team", run_id="1"),
        job_name(request(step="semantic_ids"), namespace="team", run_id="1"),
    }
    assert len(names) == 5


def test_whatever_a_run_is_called_its_job_has_a_name_and_labels_that_kubernetes_takes() -> None:
    draw = random.Random(0)
    letters = string.printable + "äÖß漢字🙂\u200b"
    for _ in range(2000):
        text = "".join(draw.choice(letters) for _ in range(draw.randrange(0, 120)))
        name = job_name(request(text, step=text), namespace="n", run_id=text)
        assert DNS_1035.fullmatch(name), text
        assert len(name) <= MAX_NAME
        for value in run_labels(run_name=text, run_id=text, workflow=text).values():
            assert LABEL_VALUE.fullmatch(value), text
            assert len(value) <= 63


@pytest.mark.parametrize("text", ["nightly", "20261130-1530-ab", "A.b_c", ""])
def test_a_fitting_label_value_stays_as_it_is(text: str) -> None:
    assert label_value(text) == text


def test_label_values_that_had_to_be_cleaned_stay_apart() -> None:
    assert label_value("a b") != label_value("a/b")
