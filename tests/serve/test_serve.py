"""The HTTP service over a judge of fixed cost: queue, fairness, limits, clients that misbehave, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")
import httpx
from kernel_coder.judge import Outcome
from kernel_coder.judge.supervisor.client import AsyncClient, Client, ServiceError
from kernel_coder.serve.__main__ import main
from stub_service import REFERENCE, StubJudge, free_port, served

TASK = {"reference": REFERENCE, "id": "a"}


def body(candidate: str, **more: Any) -> dict[str, Any]:
    return {"task": TASK, "candidate": candidate, **more}


def test_a_client_gets_the_verdicts_of_the_judge_in_order() -> None:
    judge = StubJudge()
    with served(judge) as url, Client(url, "torch") as client:
        assert (client.device, client.at_once, client.versions) == ("cpu", 2, {"stub": "1"})
        verdict = client.evaluate(REFERENCE, "class ModelNew: ...")
        assert (verdict.outcome, verdict.backend) == (Outcome.CORRECT, "torch")
        found = list(client.evaluate_many([(REFERENCE, f"# {number}") for number in range(20)]))
        assert [one.candidate_hash for one in found] == [
            one.candidate_hash for one in (judge.evaluate(_task(), f"# {number}", "torch") for number in range(20))
        ]
        assert client.admit(REFERENCE).admitted


def _task() -> Any:
    from kernel_coder.tasks.task import Task

    return Task(id="a", source="test", reference=REFERENCE)


def test_equal_requests_are_judged_once_also_at_the_same_time() -> None:
    judge = StubJudge(cost_s=0.2)
    with served(judge) as url, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: httpx.post(f"{url}/v1/judge", json=body("same")), range(8)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        assert httpx.post(f"{url}/v1/judge", json=body("same")).status_code == 200
        assert len(judge.judged) == 1
        httpx.post(f"{url}/v1/judge", json={**body("same"), "task": {**TASK, "precision": "tf32"}})
        assert len(judge.judged) == 2, "another precision is another request"


def test_failure_of_the_harness_is_not_cached() -> None:
    judge = StubJudge()
    with served(judge) as url:
        for _ in range(2):
            answer = httpx.post(f"{url}/v1/judge", json=body("# harness"))
            assert answer.json()["outcome"] == "harness_failed"
        assert len(judge.judged) == 2


def test_exception_in_the_judge_gives_status_500_and_no_verdict() -> None:
    judge = StubJudge()
    with served(judge) as url:
        assert httpx.post(f"{url}/v1/judge", json=body("# crash")).status_code == 500
        assert httpx.post(f"{url}/v1/judge", json=body("fine")).status_code == 200


def test_client_with_many_candidates_does_not_delay_other_clients() -> None:
    judge = StubJudge(workers=1)
    judge.release.clear()
    with served(judge) as url:
        many = {"requests": [body(f"many {number}") for number in range(30)]}

        def ask_many() -> None:
            httpx.post(f"{url}/v1/judge/batch", json=many, headers={"X-Client-Id": "many"}, timeout=30)

        thread = threading.Thread(target=ask_many)
        thread.start()
        _until(lambda: _health(url)["queued"] == 29)
        few = threading.Thread(
            target=lambda: httpx.post(f"{url}/v1/judge", json=body("few"), headers={"X-Client-Id": "few"}, timeout=30)
        )
        few.start()
        _until(lambda: _health(url)["queued"] == 30)
        judge.release.set()
        few.join(20)
        thread.join(20)
        place = [candidate for _, candidate in judge.judged].index("few")
        assert place <= 2, f"the other client's candidate was judged as number {place + 1}"


def test_full_queue_gives_429_with_retry_after_and_the_client_retries() -> None:
    judge = StubJudge(workers=1)
    judge.release.clear()
    with served(judge, max_queued=2) as url, ThreadPoolExecutor(8) as threads, Client(url, "torch") as client:
        futures = [threads.submit(client.evaluate, REFERENCE, f"# {number}") for number in range(6)]
        _until(lambda: _health(url)["queued"] == 2)
        answer = httpx.post(f"{url}/v1/judge", json=body("one more"))
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert "queue is full" in answer.json()["detail"]
        judge.release.set()
        assert [future.result().outcome for future in futures] == [Outcome.CORRECT] * 6


def test_batch_gives_one_line_for_each_request() -> None:
    judge = StubJudge(workers=2)
    with served(judge) as url:
        requests = [body("first"), body("first"), body("# crash"), body("second")]
        answer = httpx.post(f"{url}/v1/judge/batch", json={"requests": requests})
        lines = {line["index"]: line for line in map(json.loads, answer.text.splitlines())}
        assert sorted(lines) == [0, 1, 2, 3]
        assert lines[0]["verdict"] == lines[1]["verdict"]
        assert lines[2]["detail"] == "the judge is broken"
        assert lines[3]["verdict"]["outcome"] == "correct"


def test_request_with_wait_false_gets_an_id_and_later_the_verdict() -> None:
    judge = StubJudge()
    judge.release.clear()
    with served(judge) as url:
        answer = httpx.post(f"{url}/v1/judge", json=body("later", wait=False))
        assert answer.status_code == 202
        where = f"{url}/v1/verdicts/{answer.json()['id']}"
        assert httpx.get(where).status_code == 202
        judge.release.set()
        _until(lambda: httpx.get(where).status_code == 200)
        assert httpx.get(where).json()["outcome"] == "correct"
        assert httpx.get(f"{url}/v1/verdicts/unknown").status_code == 404


def test_candidate_of_a_disconnected_client_is_not_judged() -> None:
    judge = StubJudge(workers=1)
    judge.release.clear()
    with served(judge) as url:
        first = threading.Thread(target=lambda: httpx.post(f"{url}/v1/judge", json=body("first"), timeout=20))
        first.start()
        _until(lambda: _health(url)["running"] == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/judge", json=body("vanished"), timeout=0.2)
        _until(lambda: _health(url)["queued"] == 0)
        judge.release.set()
        first.join(20)
        assert [candidate for _, candidate in judge.judged] == ["first"]


def test_wrong_token_is_refused_on_every_route_except_the_health_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNEL_CODER_TOKEN", raising=False)
    with served(StubJudge(), token="secret") as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            for path in ("/v1/info", "/metrics", "/openapi.json", "/v1/verdicts/a"):
                assert httpx.get(f"{url}{path}", headers=headers).status_code == 401, (path, headers)
        assert httpx.get(f"{url}/health").status_code == 200
        with pytest.raises(ServiceError, match="Authorization must be 'Bearer TOKEN'"):
            Client(url)
        with Client(url, token="secret") as client:
            assert client.evaluate(REFERENCE, "fine").correct
        monkeypatch.setenv("KERNEL_CODER_TOKEN", "secret")
        with Client(url) as client:
            assert client.evaluate(REFERENCE, "fine").correct


def test_invalid_bodies_get_an_error_status_and_an_explanation() -> None:
    with served(StubJudge(), max_body_bytes=10_000, max_source_chars=2000) as url:
        cases = [
            (b"{not json", 422, "JSON"),
            (json.dumps({"candidate": "x"}).encode(), 422, "task"),
            (json.dumps({**body("x"), "other": 1}).encode(), 422, "other"),
            (json.dumps(body("x", backend="fortran")).encode(), 422, "triton"),
            (json.dumps(body("x" * 3000)).encode(), 422, "candidate may have at most 2000 characters; got 3000"),
            (json.dumps(body("x" * 20_000)).encode(), 413, "at most 10000 bytes"),
        ]
        for content, status, part in cases:
            answer = httpx.post(f"{url}/v1/judge", content=content, headers={"content-type": "application/json"})
            assert (answer.status_code, part in answer.text) == (status, True), answer.text


def test_body_without_content_length_is_refused_above_the_limit() -> None:
    def pieces() -> Any:
        for _ in range(1000):
            yield b"x" * 1000

    with served(StubJudge(), max_body_bytes=10_000) as url:
        with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError):  # closed while the client sends
            assert httpx.post(f"{url}/v1/judge", content=pieces()).status_code == 413
        assert _health(url)["status"] == "ok"


def test_connections_with_slow_headers_or_slow_bodies_are_ended() -> None:
    with served(StubJudge(), max_header_s=0.4, max_body_s=0.4) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"POST /v1/judge HTTP/1.1\r\nHost: x\r\nX-A:")
            slow.settimeout(5)
            assert slow.recv(100) == b"", "the connection was not closed"
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"POST /v1/judge HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            slow.settimeout(5)
            assert b" 408 " in slow.recv(200)
        with httpx.Client() as kept:
            for _ in range(3):
                assert kept.get(f"{url}/health").status_code == 200
                time.sleep(0.3)


def test_client_survives_a_restart_of_the_service() -> None:
    port = free_port()
    judge = StubJudge()
    with served(judge, port=port) as url:
        client = Client(url, "torch", patience_s=20)
        assert client.evaluate(REFERENCE, "before").correct
    with ThreadPoolExecutor(1) as threads, client:
        future = threads.submit(client.evaluate, REFERENCE, "meanwhile")
        time.sleep(0.5)
        assert not future.done()
        with served(StubJudge(), port=port):
            assert future.result(20).correct


def test_verdict_of_an_unreachable_service_is_harness_failed() -> None:
    with served(StubJudge()) as url:
        client = Client(url, "torch", patience_s=0.5)
    with client:
        verdict = client.evaluate(REFERENCE, "lost")
    assert verdict.outcome is Outcome.HARNESS_FAILED
    assert "within 0.5 s" in (verdict.reason or "")
    with pytest.raises(ServiceError, match="start one with kernel-coder serve"):
        Client(f"http://127.0.0.1:{free_port()}")


def test_client_refuses_a_config_that_differs_from_that_of_the_service() -> None:
    from kernel_coder.judge import JudgeConfig

    with served(StubJudge()) as url:
        with pytest.raises(ServiceError, match=r"judge\.checks is 9 here, but the service .* judges with 5"):
            Client(url, config=JudgeConfig(checks=9))
        Client(url, config=JudgeConfig(checks=5)).close()


def test_the_async_client_gets_the_same_verdicts() -> None:
    async def ask(url: str) -> list[Outcome]:
        async with AsyncClient(url, "torch") as client:
            verdicts = await asyncio.gather(*(client.evaluate(REFERENCE, f"# {number}") for number in range(5)))
            return [verdict.outcome for verdict in verdicts]

    with served(StubJudge()) as url:
        assert asyncio.run(ask(url)) == [Outcome.CORRECT] * 5


def test_routes_of_kernelgym_are_supported() -> None:
    request = {
        "task_id": "rl_1",
        "reference_code": REFERENCE,
        "kernel_code": "class ModelNew: ...",
        "backend": "triton",
        "num_correct_trials": 5,
        "toolkit": "kernelbench",
    }
    with served(StubJudge()) as url:
        answer = httpx.post(f"{url}/evaluate", json=request).json()
        assert (answer["task_id"], answer["status"], answer["compiled"], answer["correctness"]) == (
            "rl_1",
            "completed",
            True,
            True,
        )
        assert httpx.get(f"{url}/results/rl_1").json()["correctness"] is True
        assert httpx.get(f"{url}/status/rl_1").json() == {"task_id": "rl_1", "status": "completed"}
        failed = httpx.post(f"{url}/evaluate", json={**request, "kernel_code": "# harness failed"}).json()
        assert (failed["status"], failed["error_code"]) == ("failed", "SYSTEM_ERROR")


def test_shutdown_finishes_the_running_request() -> None:
    judge = StubJudge(cost_s=0.5)
    with ThreadPoolExecutor(1) as threads:
        with served(judge) as url:
            future = threads.submit(httpx.post, f"{url}/v1/judge", json=body("slow"), timeout=10)
            _until(lambda: _health(url)["running"] == 1)
        assert future.result().json()["outcome"] == "correct"


def test_public_address_without_a_token_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KERNEL_CODER_TOKEN", raising=False)
    assert main(["--host", "0.0.0.0"]) == 2
    assert "set KERNEL_CODER_TOKEN to a secret" in capsys.readouterr().err


def _health(url: str) -> Any:
    return httpx.get(f"{url}/health").json()


def _until(is_so: Any, timeout_s: float = 10.0) -> None:
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)
