"""SkyRL-gym and OpenEnv step episodes, verl's reward function is called as verl calls it, and agents use the tools."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_service import judge_served
from kernel_coder.integrations import verl
from kernel_coder.prompts import build_answer
from kernel_coder.tasks import load_tasks

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

TASKS = list(load_tasks("packaged:pointwise"))[:4]


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with judge_served() as url:
        yield url


def right(task: Any) -> str:
    return build_answer(task.solution or "", "Elementwise.")


def test_skyrl_gym_steps_episodes(service: str) -> None:
    gym = pytest.importorskip("skyrl_gym")
    from skyrl_gym.envs import register

    register(id="kernel_coder", entry_point="kernel_coder.integrations.skyrl:KernelEnv")
    for row, task in zip(verl.rows("packaged:pointwise", "nano"), TASKS, strict=False):
        extras = {"reward_spec": row["reward_model"], "extra_info": row["extra_info"]}
        config = {"url": service, "rewards": "kernel_coder", "max_turns": 2, "feedback_template": "nano"}
        env = gym.make("kernel_coder", env_config=config, extras=extras)
        env.init(row["prompt"])
        first = env.step("no code")
        assert (first["done"], first["metadata"]["outcome"]) == (False, "format_error")
        assert first["observations"][0]["role"] == "user"
        second = env.step(right(task))
        assert (second["done"], second["metadata"]["outcome"]) == (True, "correct")
        assert second["reward"] > first["reward"]
        env.close()


def test_verls_reward_function_is_called_as_verl_calls_it(service: str, tmp_path: Path) -> None:
    import pyarrow.parquet

    file = tmp_path / "train.parquet"
    assert verl.main(["packaged:pointwise", "--output", str(file), "--template", "nano"]) == 0
    rows = pyarrow.parquet.read_table(file).to_pylist()[:4]

    async def scored() -> list[dict[str, Any]]:
        return await asyncio.gather(
            *(
                verl.compute_score(
                    data_source=row["data_source"],
                    solution_str=right(task) if number % 2 else "no code",
                    ground_truth=row["reward_model"]["ground_truth"],
                    extra_info={**row["extra_info"], "num_turns": 2},
                    url=service,
                    rewards="kernel_coder",
                )
                for number, (row, task) in enumerate(zip(rows, TASKS, strict=True))
            )
        )

    found = asyncio.run(scored())
    assert [one["correct"] for one in found] == [0.0, 1.0, 0.0, 1.0]
    assert all(isinstance(one["score"], float) and one["unscored"] == 0.0 for one in found)
    assert found[1]["score"] > found[0]["score"]


def test_openenv_steps_episodes_over_its_websocket(service: str) -> None:
    pytest.importorskip("openenv")
    import uvicorn
    from kernel_coder.integrations.openenv import make_app
    from kernel_coder.judge import open_judge
    from openenv.core.generic_client import GenericEnvClient

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    options = {"max_turns": 2, "prompt_template": "nano", "feedback_template": "nano"}
    with open_judge(service) as judge:
        app = make_app(judge, TASKS, "kernel_coder", **options)
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        for task in TASKS:
            with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as env:
                asked = env.reset(task_id=task.id)
                assert asked.observation["messages"][-1]["role"] == "user"
                first = env.step({"answer": "no code"})
                assert (first.done, first.observation["outcome"]) == (False, "format_error")
                assert first.observation["messages"]
                second = env.step({"answer": right(task)})
                assert (second.done, second.observation["outcome"]) == (True, "correct")
                assert second.reward > first.reward
                assert env.state()["step_count"] == 2
        server.should_exit = True
        thread.join(20)


def test_an_agent_lists_the_tools_and_judges_a_kernel(service: str) -> None:
    pytest.importorskip("mcp")
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    command = StdioServerParameters(
        command=sys.executable, args=["-m", "kernel_coder.integrations.mcp", "--judge", service], env=_environment()
    )

    async def session() -> tuple[list[str], Any, Any]:
        async with stdio_client(command) as (read, write), ClientSession(read, write) as client:
            await client.initialize()
            tools = sorted(tool.name for tool in (await client.list_tools()).tools)
            given = {"reference": TASKS[0].reference, "candidate": TASKS[0].solution}
            judged = await client.call_tool("judge", given)
            searched = await client.call_tool("search_kernels", {"query": "relu"})
            return tools, judged, searched

    tools, judged, searched = asyncio.run(session())
    assert tools == ["judge", "search_kernels"]
    assert json.loads(judged.content[0].text)["outcome"] == "correct"
    assert "start the server with --library" in json.loads(searched.content[0].text)["note"]


def _environment() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "HOME", "TMPDIR")}
