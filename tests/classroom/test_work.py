import threading

import pytest

from autograder.classroom import work
from autograder.classroom.work import Job, Judge, Outcome, local
from autograder.sandbox import SandboxError

from .helpers import solution

STUB = 'def identity_heads(x, num_heads):\n    raise NotImplementedError("write this")\n'


def job(key="k", source=None, walls="off"):
    text = solution("warmup") if source is None else source
    return Job("identity_heads", "warmup", key, {"mha_lab/warmup.py": text.encode()}, walls, work.grading_limits())


def statuses(outcomes):
    return {j.key: o.stored and o.stored.report.status for j, o in outcomes}


@pytest.mark.parametrize("workers", [1, 2])
def test_on_this_machine(walls, workers):
    jobs = [job("right", walls=walls), job("stub", STUB, walls)]
    assert statuses(local(jobs, workers)) == {"right": "passed", "stub": "not_started"}


class Grader:
    """Fails `times` times, then tells the truth."""

    def __init__(self, times, error):
        self.times, self.error, self.closed = times, error, 0

    def check(self, exercises, folder):
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return ["a report"]

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("times, made", [(0, True), (1, True), (2, False)])
def test_a_fault_of_ours_is_tried_again_with_a_fresh_grader_and_is_never_a_verdict(monkeypatch, times, made):
    grader = Grader(times, OSError("the worker is gone"))
    monkeypatch.setattr(work, "Grader", lambda walls, limits: grader)
    judge = Judge()
    outcome = judge(job())
    assert (outcome.stored is not None) is made
    assert made or "could not be judged (OSError: the worker is gone)" in outcome.failure
    judge.close()
    assert grader.closed == times + made


def test_no_walls_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(work, "Grader", lambda walls, limits: Grader(9, SandboxError("no bubblewrap")))
    with pytest.raises(SandboxError):
        list(local([job()], 1))


def test_every_worker_has_its_own_judge_and_all_are_closed(monkeypatch):
    together, judges = threading.Barrier(2, timeout=10), set()

    class Fake:
        def __init__(self):
            self.closed = False
            judges.add(self)

        def __call__(self, job):
            together.wait()
            return Outcome(failure=str(id(self)))

        def close(self):
            self.closed = True
    monkeypatch.setattr(work, "Judge", Fake)
    used = {outcome.failure for _, outcome in local([job("a"), job("b")], 7)}
    assert len(used) == 2 == len(judges) and all(j.closed for j in judges)


def test_on_a_cluster(walls):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False,
                                  dashboard_address=None) as cluster:
        jobs = [job("right", walls=walls), job("stub", STUB, walls)]
        assert statuses(work.dask(jobs, cluster.scheduler_address)) == {"right": "passed", "stub": "not_started"}


def test_a_cluster_with_another_version_of_the_course_makes_no_report():
    assert "another version" in work.elsewhere(job(), "the key of another course").failure
