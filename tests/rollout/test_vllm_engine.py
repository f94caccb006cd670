"""The vLLM engine with a fake server that has vLLM's routes and can also fail, hang and give wrong answers."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fake_vllm import FAILURES, FakeVllm, fake_vllm
from kernel_coder import serve_model
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.rollout import Sampling
from kernel_coder.rollout.engines import make_engine
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.rollout.vllm import server_side
from kernel_coder.rollout.vllm.config import VllmConfig
from kernel_coder.rollout.vllm.engine import VllmEngine
from kernel_coder.rollout.vllm.http import Http
from kernel_coder.rollout.vllm.probe import largest_gap, score_turns
from kernel_coder.rollout.vllm.process import ServeOptions, command, environment, prepare
from kernel_coder.rollout.vllm.weights import FactoryTransfer, weights_of
from kernel_coder.run.errors import EngineFailed, UsageError

TOKENIZER = tiny_tokenizer()
SAMPLING = Sampling(max_completion_length=12, temperature=0.8)
PROMPTS = [(5, 6, 7), (9, 10), (5, 6, 7), (11, 12, 13, 14)]
SEEDS = [1, 2**62 + 1, 3, 4]
CONTROL = (
    "/health",
    "/v1/models",
    "/init_weight_transfer_engine",
    "/pause",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/reset_prefix_cache",
    "/resume",
    "/weight_info",
    "/v1/completions",
)
QUICK = {"start_timeout_s": 1.0, "answer_timeout_s": 1.0, "update_timeout_s": 1.0}


def new_model(seed: int = 0) -> Any:
    """A model whose answers are far from certain, so that other weights give other log-probs."""
    model = tiny_model(len(TOKENIZER), seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model.eval()


def change(model: torch.nn.Module, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with fake_vllm(new_model(), TOKENIZER) as server:
        yield server


def engine_at(fake: FakeVllm, model: Any = None, **settings: Any) -> VllmEngine:
    return VllmEngine(model or new_model(), TOKENIZER, VllmConfig(url=fake.url, **settings))


def test_answers_equal_those_of_the_model(fake: FakeVllm) -> None:
    model = new_model()
    engine, told = engine_at(fake, model), []
    engine.prepare(0)
    found = engine.generate(PROMPTS, SAMPLING, SEEDS, ended=lambda place, turn: told.append((place, turn)))
    alone = TransformersEngine(model, TOKENIZER, batch_size=1).generate(PROMPTS, SAMPLING, SEEDS)
    assert found == alone
    assert sorted(told, key=lambda pair: pair[0]) == list(enumerate(found))
    assert largest_gap(found, score_turns(model, found, SAMPLING.temperature)) < 1e-4
    greedy = Sampling(max_completion_length=5, temperature=0.0)
    assert engine.generate(PROMPTS, greedy, SEEDS) == TransformersEngine(model, TOKENIZER, batch_size=1).generate(
        PROMPTS, greedy, SEEDS
    )


def test_several_answers_are_requested_at_once(fake: FakeVllm) -> None:
    fake.delay_s = 0.1
    engine = engine_at(fake, at_once=8)
    engine.prepare(0)
    before = time.monotonic()
    engine.generate([(5,)] * 16, Sampling(max_completion_length=1), list(range(16)))
    assert time.monotonic() - before < 16 * 0.1
    assert 4 <= fake.most_at_a_time <= 8


def test_new_weights_reach_the_server_once_for_each_version(fake: FakeVllm) -> None:
    model = new_model()
    engine = engine_at(fake, model)
    engine.prepare(3)
    first = engine.generate(PROMPTS, SAMPLING, SEEDS)
    change(model)
    engine.prepare(4)
    engine.prepare(4)
    assert fake.calls.count("/update_weights") == 2
    assert fake.version == "4"
    assert engine.version == 4
    assert engine.gap < 1e-4
    found = engine.generate(PROMPTS, SAMPLING, SEEDS)
    assert found != first
    assert largest_gap(found, score_turns(model, found, SAMPLING.temperature)) < 1e-4


def test_update_pauses_sends_the_weights_clears_the_cache_and_resumes(fake: FakeVllm) -> None:
    engine_at(fake).prepare(0)
    assert [call for call in fake.calls if not call.startswith("/v1")] == [
        "/health",
        "/init_weight_transfer_engine",
        "/pause?mode=wait",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/reset_prefix_cache",
        "/resume",
        "/weight_info",
    ]


def test_sleeping_server_gets_weights_before_its_cache(fake: FakeVllm) -> None:
    engine = engine_at(fake, sleep=True)
    engine.prepare(0)
    engine.rest()
    engine.rest()
    fake.calls.clear()
    engine.prepare(0)  # the same version, but sleep dropped it
    assert [call for call in fake.calls if not call.startswith("/v1")] == [
        "/wake_up?tags=weights",
        "/pause?mode=wait",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/wake_up?tags=kv_cache",
        "/reset_prefix_cache",
        "/resume",
        "/weight_info",
    ]


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("stale", "not the model's"),
        ("half", "not the model's"),
        ("raw", "processed_logprobs"),
        ("version", "version another"),
        ("prompt", "prompt_token_ids"),
        ("short", "one log-prob for each token"),
        ("positive", "number of at most 0"),
        ("early", "before max_tokens"),
        ("text", "lacks token_ids"),
    ],
)
def test_server_with_wrong_weights_or_answers_is_not_used(fake: FakeVllm, lie: str, said: str) -> None:
    model = new_model()
    engine = engine_at(fake, model)
    engine.prepare(0)
    change(model)
    fake.lie = lie
    with pytest.raises(EngineFailed, match=said):
        engine.prepare(1)
    assert engine.version is None
    with pytest.raises(EngineFailed, match="weights are unknown"):
        engine.generate(PROMPTS, SAMPLING, SEEDS)


def test_wrong_answer_after_an_update_is_refused(fake: FakeVllm) -> None:
    engine = engine_at(fake)
    engine.prepare(0)
    fake.lie = "short"
    with pytest.raises(EngineFailed, match="one log-prob for each token"):
        engine.generate(PROMPTS, SAMPLING, SEEDS)
    assert engine.version is None


@pytest.mark.parametrize("route", CONTROL)
@pytest.mark.parametrize("failure", FAILURES)
def test_failure_of_any_request_raises_engine_failed_and_weights_count_as_unknown(
    fake: FakeVllm, route: str, failure: str
) -> None:
    if failure == "garbage" and route == "/health":
        failure = "fail"  # the answer of /health has no content that could be garbage
    engine = engine_at(fake, **QUICK)
    fake.failing[route] = failure
    before = time.monotonic()
    with pytest.raises(EngineFailed, match="start it anew") as error:
        engine.prepare(0)
    assert route in str(error.value) or "not ready" in str(error.value)
    assert time.monotonic() - before < 10
    assert engine.version is None
    with pytest.raises(EngineFailed, match="weights are unknown"):
        engine.generate(PROMPTS, SAMPLING, SEEDS)
    fake.failing.clear()
    fake.released.set()
    fake.is_broken = fake.is_updating = fake.is_paused = False  # as after a restart
    engine.prepare(0)
    assert engine.generate(PROMPTS, SAMPLING, SEEDS)


@pytest.mark.parametrize("failure", FAILURES)
def test_failure_while_sampling_raises_engine_failed(fake: FakeVllm, failure: str) -> None:
    engine = engine_at(fake, **QUICK)
    engine.prepare(0)
    fake.failing["/v1/completions"] = failure
    with pytest.raises(EngineFailed, match="/v1/completions"):
        engine.generate(PROMPTS, SAMPLING, SEEDS)
    assert engine.version is None


def test_poll_that_raises_ends_the_call_at_once(fake: FakeVllm) -> None:
    engine = engine_at(fake, at_once=2)
    engine.prepare(0)
    fake.delay_s = 2.0

    def poll() -> None:
        raise KeyboardInterrupt

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.generate([(5,)] * 8, SAMPLING, list(range(8)), poll=poll)
    assert time.monotonic() - before < 1.5


def test_response_that_trickles_in_ends_at_the_time_limit() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        stop = threading.Event()

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # the client disconnects
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n{")
                while not stop.wait(0.1):
                    connection.sendall(b" ")

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        before = time.monotonic()
        with pytest.raises(EngineFailed, match=r"within 0\.5 s"):
            Http(f"http://127.0.0.1:{listener.getsockname()[1]}").get("/x", timeout_s=0.5)
        assert time.monotonic() - before < 2
        stop.set()
        thread.join(5)


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "https://127.0.0.1:8000", "http://127.0.0.1:8000/v1", "x"])
def test_url_of_another_machine_or_form_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"must be like http://127\.0\.0\.1:8000"):
        Http(url)


def test_top_p_below_1_is_refused(fake: FakeVllm) -> None:
    engine = engine_at(fake)
    engine.prepare(0)
    with pytest.raises(UsageError, match="top_p must be 1"):
        engine.generate(PROMPTS, Sampling(max_completion_length=4, top_p=0.9), SEEDS)


def test_engine_is_chosen_by_name(fake: FakeVllm) -> None:
    engine = make_engine(new_model(), TOKENIZER, "vllm", vllm=VllmConfig(url=fake.url))
    assert isinstance(engine, VllmEngine)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A stand-in for the Python interpreter that always starts the fake server."""
    script = tmp_path / "python"
    here = Path(__file__).parents[1] / "fake_vllm.py"
    script.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {here} "$@"\n')
    script.chmod(0o755)
    return str(script)


def group_of(engine: VllmEngine) -> int:
    assert engine._process is not None
    assert engine._process._process is not None
    return engine._process._process.pid


def same(found: list[Any], wanted: list[Any]) -> None:
    """The tokens must be equal, and the log-probs equal up to rounding."""
    assert [turn.completion_ids for turn in found] == [turn.completion_ids for turn in wanted]
    assert largest_gap(found, [turn.logprobs for turn in wanted]) < 1e-5


@pytest.mark.long
@pytest.mark.slow
def test_own_server_is_restarted_after_it_is_killed(python: str, tmp_path: Path) -> None:
    model = new_model()
    with VllmEngine(model, TOKENIZER, VllmConfig(python=python, update_timeout_s=20), log=tmp_path / "log") as engine:
        engine.prepare(0)
        wanted = TransformersEngine(model, TOKENIZER, batch_size=1).generate(PROMPTS, SAMPLING, SEEDS)
        same(engine.generate(PROMPTS, SAMPLING, SEEDS), wanted)
        first = group_of(engine)
        os.killpg(first, signal.SIGKILL)  # between two updates
        change(model)
        engine.prepare(1)
        second = group_of(engine)
        assert second != first
        wanted = TransformersEngine(model, TOKENIZER, batch_size=1).generate(PROMPTS, SAMPLING, SEEDS)
        arrived: list[int] = []

        def killed_after_the_first(place: int, turn: Any) -> None:
            arrived.append(place)
            if len(arrived) == 1:
                os.killpg(second, signal.SIGKILL)  # while it writes answers

        engine.config = engine.config.model_copy(update={"at_once": 1})
        same(engine.generate(PROMPTS, SAMPLING, SEEDS, ended=killed_after_the_first), wanted)
        assert sorted(arrived) == [0, 1, 2, 3]
        third = group_of(engine)
    assert third not in (first, second)
    with pytest.raises(ProcessLookupError):
        os.killpg(third, 0)


def test_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'no such GPU' >&2\nexit 3\n")
    script.chmod(0o755)
    config = VllmConfig(python=str(script), restarts=1)
    with (
        VllmEngine(new_model(), TOKENIZER, config, log=tmp_path / "log") as engine,
        pytest.raises(EngineFailed, match=r"ended with exit code 3.*no such GPU"),
    ):
        engine.prepare(0)
    config = VllmConfig(python=str(tmp_path / "missing"), restarts=0)
    with VllmEngine(new_model(), TOKENIZER, config) as engine, pytest.raises(EngineFailed, match="No such file"):
        engine.prepare(0)


@pytest.mark.parametrize("is_tied", [True, False])
def test_sent_weights_equal_those_of_the_model(is_tied: bool) -> None:
    model = tiny_model(len(TOKENIZER))
    if not is_tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    sent = dict(weights_of(model, torch.float32))
    assert ("lm_head.weight" in sent) == (not is_tied)
    assert set(sent) | {"lm_head.weight"} == set(model.state_dict())
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in sent.items())
    assert {weight.dtype for _, weight in weights_of(model, torch.bfloat16)} == {torch.bfloat16}


def test_adapters_are_added_to_the_sent_weights(fake: FakeVllm) -> None:
    import peft

    base = new_model()
    model = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.03)  # more would amplify rounding errors
    merged = dict(weights_of(model, torch.float32))
    assert set(merged) == set(dict(weights_of(base, torch.float32)))
    engine = engine_at(fake, model)
    engine.prepare(0)
    found = engine.generate(PROMPTS, SAMPLING, SEEDS)
    assert largest_gap(found, score_turns(model, found, SAMPLING.temperature)) < 1e-4
    assert largest_gap(found, score_turns(base, found, SAMPLING.temperature)) > 0.01


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_gpu_transfers_go_through_the_trainer_side_of_vllm(
    fake: FakeVllm, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for vLLM's classes, which have the signatures of 0.32."""
    seen: list[Any] = []

    class Engine:
        def __init__(self, source: Any) -> None:
            self.source = source

        def send_weights(self) -> None:
            seen.append([(meta.name, meta.shape) for meta in self.source.metadata()])
            assert [name for name, _ in self.source] == [meta.name for meta in self.source.metadata()]

    def trainer_init(info: Any, *, client: Any, source: Any) -> Engine:
        seen.append((info, client))
        return Engine(source)

    def meta(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
        return SimpleNamespace(name=name, dtype=dtype, shape=shape)

    modules = {
        "base": {"ParamMeta": meta, "WeightSource": object},
        "clients": {"HTTPVLLMWeightSyncClient": lambda url, timeout: (url, timeout)},
        "factory": {"WeightTransferTrainerFactory": SimpleNamespace(trainer_init=trainer_init)},
        "nccl_engine": {"NCCLTrainerInitInfo": lambda **given: ("nccl", given)},
        "ipc_engine": {"IPCTrainerInitInfo": lambda **given: ("ipc", given)},
    }
    package = ModuleType("vllm.distributed.weight_transfer")
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    for name, content in modules.items():
        module = ModuleType(f"{package.__name__}.{name}")
        vars(module).update(content)
        setattr(package, name, module)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    engine = engine_at(fake)
    engine._connect()
    server = engine._server
    assert server is not None
    monkeypatch.setattr(server.http, "get", lambda path, timeout_s: {"world_size": 2})
    transfer = FactoryTransfer(backend, server, engine.model, torch.float32)
    transfer.connect()
    transfer.send("7")
    (kind, given), client = seen[0]
    assert kind == backend
    assert given["rank"] == 0
    assert client == (fake.url, server.update_timeout_s)
    assert given.get("world_size") == (3 if backend == "nccl" else None)
    assert [name for name, _ in seen[1]] == [name for name, _ in weights_of(engine.model, torch.float32)]
    assert fake.calls[-1] == "/update_weight_version"


def test_gpu_transfer_needs_vllm_and_a_gpu(fake: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"model\.device is not cuda"):
        engine_at(fake, transfer="nccl").prepare(0)
    engine = engine_at(fake)
    engine._connect()
    assert engine._server is not None
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UsageError, match=r"needs vLLM 0\.32"):
        FactoryTransfer("ipc", engine._server, engine.model, torch.float32)


def test_server_has_the_flags_that_training_needs(tmp_path: Path) -> None:
    options = ServeOptions(model="m", port=8123, gpus="2,3", backend="ipc", sleep=True, args=("--seed", "1"))
    line = " ".join(command(options, tmp_path))
    for part in (
        "serve m --host 127.0.0.1 --port 8123",
        "--logprobs-mode processed_logprobs --generation-config vllm",
        '--weight-transfer-config {"backend": "ipc"}',
        "--tensor-parallel-size 2",
        "--enable-sleep-mode",
    ):
        assert part in line
    assert line.endswith("--seed 1")
    given = environment(options, tmp_path, {"PYTHONPATH": "/x", "KEPT": "1"})
    assert given["PYTHONPATH"] == f"{tmp_path}:/x"
    assert given["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert given["KEPT"] == given["VLLM_SERVER_DEV_MODE"] == given["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "1"
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in environment(ServeOptions(model="m", port=1), tmp_path, {})


def test_plugin_is_found_by_its_entry_point(tmp_path: Path) -> None:
    from importlib.metadata import distributions

    prepare(tmp_path)
    (found,) = [d for d in distributions(path=[str(tmp_path)])]
    (point,) = found.entry_points
    assert (point.group, point.value) == ("vllm.general_plugins", f"{server_side.MODULE}:register")
    assert (tmp_path / f"{server_side.MODULE}.py").read_text() == Path(server_side.__file__).read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["m", "--transfer", "mail"], "--transfer must be file, nccl, ipc; got mail"), ([], "required: model")],
)
def test_serve_model_explains_mistakes(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_model.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_serve_model_reports_a_server_that_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho $@ >&2\nexit 5\n")
    script.chmod(0o755)
    log = tmp_path / "log"
    before: dict[signal.Signals, Callable[..., Any]] = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = serve_model.main(["nano", "--python", str(script), "--cpu", "--log", str(log), "--", "--seed", "3"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert code == 4
    assert "exit code 5" in capfd.readouterr().err
    assert "--enforce-eager --no-enable-chunked-prefill --seed 3" in log.read_text()
