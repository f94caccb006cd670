"""Tasks: PyTorch modules to rewrite, from files, folders, the hub or the packaged tables."""

from kernel_coder.tasks.sources import DataSource, load_tasks
from kernel_coder.tasks.task import Task
from kernel_coder.tasks.task_set import Problem, TaskSet

__all__ = ["DataSource", "Problem", "Task", "TaskSet", "load_tasks"]
