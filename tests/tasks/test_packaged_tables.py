"""The generated pairs that Kernel Coder ships: enough pairs, small files, the right split, selection by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from kernel_coder.tasks import load_tasks
from kernel_coder.tasks.generator import FAMILIES, HELDOUT_FAMILIES
from kernel_coder.tasks.generator.split import split_of_composition
from kernel_coder.tasks.sources import PACKAGED_FOLDER, PACKAGED_TABLES
from kernel_coder.train.config import DataConfig

LEAST = {"generated": 500, "heldout": 150, "heldout_families": 120, "pointwise": 150, "pointwise_heldout": 150}
CONFIGS = Path(__file__).parents[2] / "configs"
LEFT_OUT = {"layer_norm", "bmm", "residual", "loss"}
"""By recipes; of the side on which a pair is for training."""

POINTWISE = {"activation", "broadcast", "elementwise", "residual", "ordinary"}


@pytest.mark.parametrize("name", PACKAGED_TABLES)
def test_packaged_table_is_complete_and_of_the_right_split(name: str) -> None:
    tasks = load_tasks(f"packaged:{name}")
    assert len(tasks) >= LEAST[name]
    assert not tasks.problems
    expected = {"heldout_composition" if name.endswith("heldout") else "train"}
    expected |= {"heldout_family"} if name == "heldout_families" else set()
    assert {task.metadata["split"] for task in tasks} == expected
    found = [split_of_composition(task.metadata["family"], tuple(task.metadata["composition"])) for task in tasks]
    assert found == [task.metadata["split"] for task in tasks]
    assert all(task.solution is not None for task in tasks)
    families = {task.metadata["family"] for task in tasks}
    if name == "heldout_families":
        assert families == LEFT_OUT | HELDOUT_FAMILIES
        return
    assert families == (POINTWISE if name.startswith("pointwise") else set(FAMILIES) - set(HELDOUT_FAMILIES))


def test_recipes_exclude_the_held_out_families() -> None:
    recipe = yaml.safe_load((CONFIGS / "smollm2-135m.yaml").read_text())
    assert set(recipe["data"]["exclude_families"]) == LEFT_OUT
    words = (CONFIGS / "smollm2-135m-sft.yaml").read_text().replace("#", " ").split()
    place = words.index("--exclude-families") + 1  # in the command that makes the corpus of the recipe
    assert set(words[place : place + len(LEFT_OUT)]) == LEFT_OUT


def test_the_packaged_tables_are_small() -> None:
    assert sum((PACKAGED_FOLDER / f"{name}.parquet").stat().st_size for name in PACKAGED_TABLES) < 2_000_000


def test_no_held_out_composition_is_trained_on() -> None:
    def compositions(*names: str) -> set[tuple[str, ...]]:
        return {tuple(task.metadata["composition"]) for name in names for task in load_tasks(f"packaged:{name}")}

    assert not compositions("generated", "pointwise") & compositions("heldout", "pointwise_heldout")


def test_families_and_max_level_select_tasks() -> None:
    config = DataConfig(path="packaged:generated", families=["softmax", "matmul"], max_level=1)
    tasks = load_tasks(config)
    assert {task.metadata["family"] for task in tasks} == {"softmax", "matmul"}
    assert {task.metadata["level"] for task in tasks} == {0, 1}
    assert len(load_tasks(config, limit=3)) == 3


def test_excluded_families_are_left_out_and_the_rest_is_kept() -> None:
    whole = load_tasks("packaged:heldout")
    left = load_tasks(DataConfig(path="packaged:heldout", exclude_families=["layer_norm", "bmm"]))
    out = load_tasks("packaged:heldout", families=["layer_norm", "bmm"])
    assert {task.metadata["family"] for task in out} == {"layer_norm", "bmm"}
    assert {task.id for task in left} == {task.id for task in whole} - {task.id for task in out}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"path": "packaged:other"},
            "packaged:other does not exist; the packaged tables are packaged, packaged:generated",
        ),
        ({"families": []}, "data.families is empty"),
        (
            {"families": ["loss", "bmm"], "exclude_families": ["bmm"]},
            "data.families and data.exclude_families both name bmm",
        ),
        (
            {"families": ["softmax", "unknown"]},
            "data.families names unknown, but the families of packaged:generated are .*layer_norm.*softmax",
        ),
        ({"exclude_families": ["layer-norm"]}, "data.exclude_families names layer-norm, but the families of packaged"),
        (
            {"path": "packaged", "max_level": 1},
            "no task of packaged fits data.families, data.exclude_families and data.max_level; 118 do not",
        ),
    ],
)
def test_mistakes_in_the_selection_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_tasks(DataConfig(**{"path": "packaged:generated", **changes}))
