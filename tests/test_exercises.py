"""Every exercise, held to its own declaration: right programs pass, wrong ones fail and are named as themselves."""
import pytest

from autograder.diagnosis import SHARED, diagnose
from autograder.exercises import SESSIONS, all_exercises
from autograder.standard import shared_faults

EXERCISES = all_exercises()
RIGHTS = [(e, p) for e in EXERCISES for p in e.rights]
WRONGS = [(e, p) for e in EXERCISES for p in e.wrongs]
FAULTS = [(e, p) for e in EXERCISES if e.tensor for p in shared_faults(e)]


def _ids(pair):
    return f"{pair[0].name}-{pair[1].label}"


@pytest.mark.parametrize("pair", RIGHTS, ids=_ids)
def test_a_right_program_is_never_refused(pair):
    exercise, program = pair
    assert [(t.case.title, t.message) for t in exercise.try_program(program) if not t.passed] == []


@pytest.mark.parametrize("pair", WRONGS, ids=_ids)
def test_a_wrong_program_is_named_as_itself(pair):
    exercise, program = pair
    found = diagnose(exercise, exercise.try_program(program))
    assert found is not None, [(t.case.title, t.message) for t in exercise.try_program(program) if not t.passed]
    assert program.id in found.ids and len(found.ids) <= 3
    assert program.why in found.explanation and found.evidence


@pytest.mark.parametrize("pair", FAULTS, ids=_ids)
def test_a_shared_fault_is_named(pair):
    exercise, program = pair
    trials = exercise.try_program(program)
    found = diagnose(exercise, trials)
    assert found and found.ids == [program.id], [(t.case.title, t.message) for t in trials if not t.passed]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_the_declaration_is_complete(exercise):
    assert exercise.points >= 1 and 1 <= exercise.difficulty <= 5 and 1 <= exercise.importance <= 5
    assert exercise.minutes >= 1 and exercise.summary
    assert len(exercise.hints) == 3 and all(len(h) > 20 for h in exercise.hints)
    assert len(exercise.rights) >= 2 and exercise.wrongs
    programs = exercise.rights + exercise.wrongs
    assert len({p.label for p in programs}) == len(programs)
    assert exercise.recognisers.keys() <= set(exercise.wrong_ids)
    assert not set(exercise.wrong_ids) & SHARED.keys()
    assert len({c.title for c in exercise.cases}) == len(exercise.cases)


def test_a_session_has_one_name_in_every_room():
    modules = [m for s in SESSIONS for m in s.modules]
    assert len({s.id for s in SESSIONS}) == len(SESSIONS) and len(set(modules)) == len(modules)
