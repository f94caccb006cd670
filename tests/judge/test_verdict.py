"""The verdict: contradictions and wrong types are refused, and JSON keeps every field."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.judge import MAX_FEEDBACK, PROTOCOL, Outcome, OutputError, Verdict, example_verdict

INF, NAN = math.inf, math.nan
DEATHS = [Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.REJECTED, Outcome.HARNESS_FAILED]


def output_error(**others: Any) -> OutputError:
    given = {"name": "output", "elements": 10, "mismatches": 0, "max_abs_error": 1e-6, "max_rel_error": 1e-5}
    return OutputError(**{**given, "relative_error": 1e-6, **others})


# Properties


def test_correct_and_is_scored_follow_from_the_outcome() -> None:
    for outcome in Outcome:
        verdict = example_verdict(outcome.value)
        assert verdict.correct == (outcome is Outcome.CORRECT)
        assert verdict.is_scored == (outcome is not Outcome.HARNESS_FAILED)
        assert str(outcome) == outcome.value
    with pytest.raises(TypeError, match="correct"):
        Verdict(outcome=Outcome.TIMEOUT, correct=True)  # type: ignore[call-arg]


def test_verdict_cannot_be_changed_and_copies_its_arguments() -> None:
    versions, seeds = {"torch": "2.13.0"}, [1, 2]
    verdict = example_verdict(versions=versions, seeds=seeds)
    versions["torch"], seeds[0] = "other", 9
    assert (verdict.versions, verdict.seeds) == ({"torch": "2.13.0"}, (1, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.speedup = 9.0  # type: ignore[misc]
    assert dataclasses.replace(verdict, device="cpu").device == "cpu"


def test_verdict_can_be_hashed_copied_pickled_and_converted_to_a_dict() -> None:
    verdict = example_verdict(speedup=1.5, stage_s={"compile": 1.0}, errors=(output_error(),))
    for twin in (copy.deepcopy(verdict), pickle.loads(pickle.dumps(verdict))):
        assert twin == verdict
        assert hash(twin) == hash(verdict)
    assert dataclasses.asdict(verdict)["errors"][0]["name"] == "output"


# Contradictions and wrong types


@pytest.mark.parametrize(
    ("outcome", "fields", "sentence"),
    [
        ("correct", {"reason": "slow"}, "a correct verdict has no reason; got 'slow'"),
        ("correct", {"compiled": False}, "a verdict of correct is about a candidate that compiled; got compiled=False"),
        ("correct", {"errors": [output_error(mismatches=1)]}, "a correct verdict has no output with mismatches"),
        *((one.value, {"reason": None}, f"a verdict of {one} needs a reason; got None") for one in DEATHS),
        ("timeout", {"reason": " \n"}, "a verdict of timeout needs a reason; got ' \\n'"),
        ("wrong_output", {"compiled": False}, "a verdict of wrong_output is about a candidate that compiled;"),
        ("runtime_error", {"compiled": False}, "a verdict of runtime_error is about a candidate that compiled;"),
        ("format_error", {"compiled": True}, "a verdict of format_error is about a candidate that did not compile;"),
        ("compile_error", {"compiled": True}, "a verdict of compile_error is about a candidate that did not compile;"),
        *((one.value, {"speedup": 2.0}, f"only a correct verdict has a speedup; got 2.0 with {one}") for one in DEATHS),
        ("wrong_output", {"speedup": 2.0}, "only a correct verdict has a speedup; got 2.0 with wrong_output"),
        ("correct", {"speedup": 2.0, "interpreted": True}, "an interpreted run has no speedup; got 2.0"),
        ("correct", {"speedup": 2.0, "runtime_ms": None}, "a speedup needs runtime_ms and reference_ms"),
        ("correct", {"speedup": 2.0, "reference_ms": None}, "a speedup needs runtime_ms and reference_ms"),
        ("correct", {"speedup": 2.0, "speedup_low": None}, "a speedup needs both bounds of its confidence interval"),
        ("correct", {"speedup": 2.0, "speedup_low": 2.1}, "a speedup must lie in its interval; got 2.0 and 2.1 to 2.1"),
        ("correct", {"speedup_low": 1.0}, "bounds of a speedup need a speedup; got none"),
        ("correct", {"speedup": 0.0}, "speedup must be positive and finite; got 0.0"),
        ("correct", {"speedup": INF}, "speedup must be positive and finite; got inf"),
        ("correct", {"speedup": NAN}, "speedup must be positive and finite; got nan"),
        ("correct", {"runtime_ms": -1.0}, "runtime_ms must be positive and finite; got -1.0"),
        ("correct", {"reference_compile_ms": 0.0}, "reference_compile_ms must be positive and finite; got 0.0"),
        ("correct", {"runtimes_ms": [1.0, NAN]}, "runtimes_ms must be positive and finite"),
        ("correct", {"stage_s": {"compile": -1.0}}, "stage_s must be finite and at least 0; got -1.0 for compile"),
        ("correct", {"kernel_share": 1.01}, "kernel_share must be between 0 and 1; got 1.01"),
        ("correct", {"kernel_share": NAN}, "kernel_share must be between 0 and 1; got nan"),
        ("correct", {"feedback": "x" * (MAX_FEEDBACK + 1)}, "feedback must have at most 4000 characters; got 4001"),
        ("correct", {"task_hash": "ABC"}, "task_hash must be a SHA-256 in lower-case hexadecimal; got 'ABC'"),
        ("correct", {"candidate_hash": "F" * 64}, "candidate_hash must be a SHA-256 in lower-case hexadecimal;"),
        ("correct", {"protocol": 0}, "protocol must be between 1 and"),
        ("correct", {"protocol": PROTOCOL + 1}, "protocol must be between 1 and"),
    ],
)
def test_a_contradiction_is_refused_in_one_sentence(outcome: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        example_verdict(outcome, **fields)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"runtime_ms": "1.0"}, "runtime_ms must be of type float; got '1.0'"),
        ({"runtime_ms": True}, "runtime_ms must be of type float; got True"),
        ({"interpreted": 1}, "interpreted must be of type bool; got 1"),
        ({"seeds": [1.0]}, "seeds must be of type int; got 1.0"),
        ({"seeds": [True]}, "seeds must be of type int; got True"),
        ({"seeds": 3}, "seeds must be of type tuple; got 3"),
        ({"seeds": "12"}, "seeds must be of type tuple; got '12'"),
        ({"versions": {"torch": 2.13}}, "versions['torch'] must be of type str; got 2.13"),
        ({"versions": {1: "x"}}, "versions must be of type mapping; got {1: 'x'}"),
        ({"errors": [{"name": "output"}]}, "errors must be of type outputerror; got {'name': 'output'}"),
        ({"feedback": None}, "feedback must be of type str; got None"),
    ],
)
def test_a_wrong_type_is_refused_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        example_verdict(**fields)
    assert str(caught.value) == sentence
    with pytest.raises(TypeError, match=r"^outcome must be of type outcome; got 'correct'$"):
        dataclasses.replace(example_verdict(), outcome="correct")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"mismatches": 11}, "output cannot have 11 mismatches among 10 elements"),
        ({"mismatches": -1}, "mismatches of output must be at least 0; got -1"),
        ({"max_abs_error": NAN}, "max_abs_error of output must be at least 0; got nan"),
        ({"reference_error": -1e-9}, "reference_error of output must be at least 0; got -1e-09"),
    ],
)
def test_invalid_output_error_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        output_error(**fields)
    assert str(caught.value) == sentence


def test_a_rejected_candidate_may_have_been_timed() -> None:
    assert example_verdict("rejected", runtime_ms=1e-6, runtimes_ms=[1e-6]).runtime_ms == 1e-6


# JSON

texts = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates too
positive = st.floats(0, exclude_min=True, allow_infinity=False)
unsigned = st.floats(0, allow_infinity=True)
hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
output_errors = st.builds(
    lambda wrong, **rest: OutputError(elements=10**12, mismatches=wrong, **rest),
    st.integers(0, 10**12),
    name=texts,
    max_abs_error=unsigned,
    max_rel_error=unsigned,
    relative_error=unsigned,
    reference_error=st.none() | unsigned,
)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    outcome = draw(st.sampled_from(Outcome))
    fields: dict[str, Any] = {
        "feedback": draw(texts),
        "runtime_ms": draw(st.none() | positive),
        "reference_compile_ms": draw(st.none() | positive),
        "kernel_share": draw(st.none() | st.floats(0, 1)),
        "task": draw(texts),
        "task_hash": draw(hashes),
        "device": draw(texts),
        "interpreted": draw(st.booleans()),
        "seeds": draw(st.lists(st.integers(-(2**70), 2**70), max_size=3)),
        "runtimes_ms": draw(st.lists(positive, max_size=3)),
        "stage_s": draw(st.dictionaries(texts, st.floats(0, allow_infinity=False), max_size=3)),
        "versions": draw(st.dictionaries(texts, texts, max_size=3)),
    }
    if outcome is Outcome.CORRECT:
        if draw(st.booleans()):
            low, middle, high = sorted(draw(st.tuples(positive, positive, positive)))
            fields |= {"speedup": middle, "speedup_low": low, "speedup_high": high, "interpreted": False}
            fields |= {"runtime_ms": draw(positive), "reference_ms": draw(positive)}
    else:
        fields |= {"reason": draw(texts.filter(str.strip)), "errors": draw(st.lists(output_errors, max_size=2))}
    return example_verdict(outcome.value, **fields)


@settings(max_examples=200, deadline=None)
@given(verdicts())
def test_json_keeps_every_bit(verdict: Verdict) -> None:
    line = verdict.to_json()
    assert line.isascii()
    assert "\n" not in line
    again = Verdict.from_json(line)
    assert again == verdict
    assert again.to_json() == line


def test_json_has_every_field_and_writes_infinity_as_text() -> None:
    verdict = example_verdict("wrong_output", errors=[output_error(mismatches=1, max_abs_error=INF)])
    plain = json.loads(verdict.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert list(plain) == [field.name for field in dataclasses.fields(Verdict)]
    assert plain["errors"][0]["max_abs_error"] == "inf"
    assert plain["correct"] is False
    assert plain["outcome"] == "wrong_output"


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(example_verdict("timeout").to_json()), **fields})


def without(*names: str) -> str:
    plain = json.loads(example_verdict("timeout").to_json())
    return json.dumps({key: value for key, value in plain.items() if key not in names})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a verdict must be a JSON object: "),
        ("{", "a verdict must be a JSON object: "),
        ("[" * 100_000, "a verdict must be a JSON object: "),
        ("null", "a verdict must be of type verdict; got None"),
        ("[]", "a verdict must be of type verdict; got []"),
        ("{}", "a verdict has no field outcome"),
        (without("seeds"), "a verdict has no field seeds"),
        (without("correct"), "a verdict has no field correct"),
        (changed(reward=1.0), "a verdict has an unknown field 'reward'"),
        (changed(correct=True), "a verdict of timeout cannot have correct=True"),
        (changed(correct=0), "correct must be of type bool; got 0"),
        (changed(outcome="CORRECT"), "outcome must be of type outcome; got 'CORRECT'"),
        (changed(outcome=["timeout"]), "outcome must be of type outcome; got ['timeout']"),
        (changed(speedup=2.0), "only a correct verdict has a speedup; got 2.0 with timeout"),
        (changed(reason=None), "a verdict of timeout needs a reason; got None"),
        (changed(runtime_ms="2"), "runtime_ms must be of type float; got '2'"),
        (changed(runtime_ms="inf"), "runtime_ms must be positive and finite; got inf"),
        (changed(runtime_ms=10**400), "runtime_ms must be of type float; got 1000"),
        (changed(protocol=PROTOCOL + 1), "protocol must be between 1 and"),
        (changed(errors=[{}]), "errors has no field name"),
        (changed(errors=[{**dataclasses.asdict(output_error()), "x": 1}]), "errors has an unknown field 'x'"),
        (changed(stage_s={"a": "b"}), "stage_s['a'] must be of type float; got 'b'"),
        ('{"outcome": "timeout", "outcome": "correct"}', "a verdict has the field outcome twice"),
        ('{"outcome": NaN}', 'a verdict must be JSON without NaN; infinity is written "inf"'),
    ],
    ids=lambda value: value[:40],
)
def test_invalid_json_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Verdict.from_json(text)
    assert str(caught.value).startswith(sentence)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda a: st.lists(a) | st.dictionaries(st.text(), a)
    )
)
def test_any_value_in_a_field_is_accepted_or_refused_with_a_value_error(value: Any) -> None:
    for name in ("outcome", "compiled", "errors", "seeds", "stage_s", "speedup", "feedback"):
        text = changed(**{name: value})
        try:
            verdict = Verdict.from_json(text)
        except ValueError:
            continue
        assert verdict.outcome in Outcome
