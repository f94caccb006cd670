"""A recipe's ``judge.url`` and ``evaluate --judge-url``: the verdicts come from the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")
from kernel_coder.evaluate.__main__ import main as evaluate
from kernel_coder.judge import Outcome
from kernel_coder.refine.config import parse
from kernel_coder.run.errors import UsageError
from kernel_coder.tasks import load_tasks
from kernel_coder.train.config import JudgeSection, TrainConfig, load_config
from kernel_coder.train.verdicts import AnswerJudge
from pydantic import ValidationError
from stub_service import StubJudge, free_port, served

ANSWER = "<answer>\n```python\nclass ModelNew: ...\n```\n</answer>"


def test_recipe_with_a_judge_url_gets_verdicts_from_the_service(tmp_path: Path) -> None:
    judge = StubJudge()
    (task,) = list(load_tasks("packaged:pointwise"))[:1]
    recipe = tmp_path / "recipe.yaml"
    with served(judge) as url:
        recipe.write_text(f"judge: {{device: cpu, url: '{url}', backend: triton}}\n")
        section = load_config(str(recipe), []).judge
        assert section is not None
        with AnswerJudge(section) as answers:
            assert answers.device == url
            with answers.asking() as ask:
                assert ask is not None
                verdicts = [ask(task, ANSWER).result(), ask(task, "no code").result(), ask(task, ANSWER).result()]
    assert [one.outcome for one in verdicts] == [Outcome.CORRECT, Outcome.FORMAT_ERROR, Outcome.CORRECT]
    assert len(judge.judged) == 1


def test_mistakes_in_judge_addresses_are_refused(tmp_path: Path) -> None:
    for section, part in (
        ({"url": "127.0.0.1:8400"}, "url must begin with http:// or https://"),
        ({"cluster": "auto"}, "cluster must begin with ray://"),
        ({"device": "http://127.0.0.1:8400"}, "url and cluster take addresses"),
        ({"url": "http://a", "cluster": "ray://auto"}, "only one of url and cluster may be given"),
        ({"url": "http://"}, "url must name a host"),
    ):
        with pytest.raises(ValidationError, match=part):
            JudgeSection.model_validate(section)
    assert JudgeSection(cluster="ray://auto?device=cuda").place == "ray://auto?device=cuda"
    with (
        pytest.raises(UsageError, match="no judge answers at http"),
        AnswerJudge(JudgeSection(url=f"http://127.0.0.1:{free_port()}")),
    ):
        pass
    assert TrainConfig.model_validate({"judge": {"url": "http://a:1", "checks": 7}}).judge.judge_config().checks == 7
    config, _ = parse([str(tmp_path / "module.py"), "--judge-url", "http://127.0.0.1:8400"])
    assert config.judge_url == "http://127.0.0.1:8400"


@pytest.mark.slow
def test_evaluate_asks_the_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge = StubJudge()
    with served(judge) as url:
        flags = ["--model", "nano", "--device", "cpu", "--tasks", "packaged:pointwise_heldout", "--limit", "2"]
        flags += ["--prompt-template", "nano", "--judge-url", url, "--output", str(tmp_path / "run")]
        assert evaluate([*flags, "--max-new-tokens", "384", "--temperature", "0"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "verdicts.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert 1 <= len(judge.judged) <= 2
    assert {one["verdict"]["outcome"] for one in lines} <= {"correct", "format_error"}
    assert evaluate([*flags, "--judge-device", "cuda:1"]) == 2
    assert "judge_device and judge_url exclude each other" in capsys.readouterr().err
