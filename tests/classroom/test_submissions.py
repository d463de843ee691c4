import os

import pytest

from autograder.classroom import submissions
from autograder.classroom.submissions import Unreadable, content_key, grader_key, read_submission
from autograder.sandbox import Limits


@pytest.fixture
def submission(tmp_path):
    (tmp_path / "mha_lab").mkdir()
    (tmp_path / "mha_lab" / "warmup.py").write_text("def identity_heads(): ...\n")
    return tmp_path


def test_only_mha_lab_matters(submission):
    (submission / "torch.py").write_text("raise SystemExit")
    (submission / "autograder").mkdir()
    (submission / "autograder" / "grading.py").write_text("raise SystemExit")
    (submission / "mha_lab" / "data.bin").write_text("x")
    assert list(read_submission(submission, "warmup")) == ["mha_lab/warmup.py"]


def test_a_missing_file_is_a_reason_without_a_path_of_this_machine(submission):
    (submission / "mha_lab" / "warmup.py").unlink()
    with pytest.raises(Unreadable) as why:
        read_submission(submission, "warmup")
    assert "mha_lab/warmup.py is missing" in str(why.value) and str(submission) not in str(why.value)


@pytest.mark.parametrize("link", ["mha_lab", "mha_lab/warmup.py"])
def test_a_link_to_somewhere_else_is_not_followed(submission, tmp_path_factory, link):
    other = tmp_path_factory.mktemp("other")
    (other / "warmup.py").write_text("def identity_heads(): 'of another student'\n")
    target = other if link == "mha_lab" else other / "warmup.py"
    (submission / "mha_lab" / "warmup.py").unlink()
    if link == "mha_lab":
        (submission / "mha_lab").rmdir()
    os.symlink(target, submission / link)
    with pytest.raises(Unreadable, match="is a link"):
        read_submission(submission, "warmup")


def test_far_too_large_is_a_reason(submission):
    (submission / "mha_lab" / "big.py").write_bytes(b"#" * (5 << 20))
    with pytest.raises(Unreadable, match="larger than") as why:
        read_submission(submission, "warmup")
    assert str(submission) not in str(why.value)


def test_the_key_follows_all_that_decides_a_verdict():
    files = {"mha_lab/warmup.py": b"a"}
    keys = [content_key("warmup", "identity_heads", files, Limits())] + [
        content_key("warmup", "identity_heads", {"mha_lab/warmup.py": b"b"}, Limits()),
        content_key("warmup", "identity_heads", {"mha_lab/warmup.py": b"a", "mha_lab/given.py": b""}, Limits()),
        content_key("warmup", "other", files, Limits()),
        content_key("shapes", "identity_heads", files, Limits()),
        content_key("warmup", "identity_heads", files, Limits(wall=1)),
    ]
    assert len(set(keys)) == len(keys)
    assert content_key("warmup", "identity_heads", dict(files), Limits()) == keys[0]


def test_the_key_follows_the_oracle(tmp_path, monkeypatch):
    for name in ("grading.py", "notebook.py", "exercises/__init__.py", "exercises/warmup/identity_heads.py",
                 "exercises/shapes/split_heads.py", "classroom/grade.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    monkeypatch.setattr(submissions, "ENGINE", tmp_path)

    def key_after(name):
        (tmp_path / name).write_text("2")
        grader_key.cache_clear()
        return grader_key("warmup")
    try:
        first = key_after("notebook.py")
        assert key_after("classroom/grade.py") == first == key_after("exercises/shapes/split_heads.py")
        second = key_after("exercises/warmup/identity_heads.py")
        assert len({first, second, key_after("grading.py")}) == 3
    finally:
        grader_key.cache_clear()
